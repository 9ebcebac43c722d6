/* A tensor is row-major: element [i0, i1, i2] of shape [n0, n1, n2] is number ((i0 * n1) + i1) * n2 + i2 in the file. A
 * slice takes the indices start, start + step, ... along each axis. The last axes that are taken whole, and one more
 * before them if its step is 1, make a run of elements that lie side by side. A walk through the slice goes from run to
 * run, so that it touches the bytes of the slice and no others.
 */
#include "checkpoint/slice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/tensor.h"

/* ---- reading a slice --------------------------------------------------------------------------------------------- */

/* Step over c if it comes next. */
static bool skip(const char **p, char c)
{
    if (**p != c)
        return false;
    ++*p;
    return true;
}

/* Read a signed whole number, or nothing (then *given is false). Advances *p. What is beyond 63 bits becomes the
 * largest of them, which is as far beyond the end of every axis. */
static void read_bound(const char **p, bool *given, int64_t *value)
{
    const char *s = *p + strspn(*p, " ");
    bool negative = skip(&s, '-');
    uint64_t size = 0;
    if (!negative)
        skip(&s, '+');
    *given = *s >= '0' && *s <= '9';
    for (; *s >= '0' && *s <= '9'; s++)
        size = size > INT64_MAX / 10 ? INT64_MAX : MIN(10 * size + (uint64_t)(*s - '0'), INT64_MAX);
    if (*given)
        *p = s + strspn(s, " ");
    *value = negative ? -(int64_t)size : (int64_t)size;
}

/* Bounds below zero count from the end; then they are clipped to low .. high. */
static int64_t place_bound(int64_t bound, int64_t size, int64_t low, int64_t high)
{
    int64_t place = bound < 0 ? bound + size : bound;
    return MAX(low, MIN(place, high));
}

/* As Python's slice.indices(). With a negative step the walk goes down, from at most the last index to above -1. */
static void set_range(SliceAxis *a, uint64_t size, const bool given[2], const int64_t bound[2], int64_t step)
{
    bool down = step < 0;
    int64_t n = (int64_t)size, low = down ? -1 : 0, high = down ? n - 1 : n;
    int64_t begin = down ? high : low, end = down ? low : high;
    if (given[0])
        begin = place_bound(bound[0], n, low, high);
    if (given[1])
        end = place_bound(bound[1], n, low, high);
    int64_t distance = down ? begin - end : end - begin;
    uint64_t stride = down ? 0 - (uint64_t)step : (uint64_t)step;
    *a = (SliceAxis){.step = step};
    if (distance > 0) {
        a->count = ((uint64_t)distance - 1) / stride + 1;
        a->start = (uint64_t)begin;
    }
}

/* text: the index as it was written. */
static int set_index(SliceAxis *a, const SafetensorsTensor *t, size_t axis, int64_t index, const char *text,
                     char err[512])
{
    uint64_t size = t->shape[axis];
    uint64_t place = index < 0 ? (uint64_t)index + size : (uint64_t)index; /* below zero wraps, beyond any size */
    if (place >= size)
        return tensor_fail(err, NULL, t, "index %.*s is outside axis %zu, whose size is %" PRIu64,
                           (int)MIN(strcspn(text, " ,"), 60), text, axis, size);
    *a = (SliceAxis){.start = place, .count = 1, .step = 1, .dropped = true};
    return 0;
}

/* Read what is given for one axis: "3", "1:", ":-1", "::2". Advances *p to the comma or the end. */
static int parse_axis(const char **p, const SafetensorsTensor *t, size_t axis, SliceAxis *a, char err[512])
{
    const char *start = *p;
    bool given[3] = {false, false, false};
    int64_t bound[3] = {0, 0, 0};
    size_t parts = 0;
    if (t->shape[axis] > INT64_MAX)
        return tensor_fail(err, NULL, t, "axis %zu is too long to be sliced: %" PRIu64, axis, t->shape[axis]);
    do {
        read_bound(p, &given[parts], &bound[parts]);
        parts++;
    } while (parts < 3 && skip(p, ':'));
    *p += strspn(*p, " ");
    if ((**p && **p != ',') || (parts == 1 && !given[0]))
        return tensor_fail(
            err, NULL, t,
            "slice \"%.60s\" is not valid: write an index such as 3 or -1, or a range such as 0:4, 2:, ::2", start);
    if (parts == 1)
        return set_index(a, t, axis, bound[0], start + strspn(start, " "), err);
    if (given[2] && bound[2] == 0)
        return tensor_fail(err, NULL, t, "slice \"%.60s\": the step cannot be 0", start);
    set_range(a, t->shape[axis], given, bound, given[2] ? bound[2] : 1);
    return 0;
}

/* Does an axis follow the comma at p? "0," is "0", as in Python. */
static bool at_comma(const char *p)
{
    return *p == ',' && p[1 + strspn(p + 1, " ")];
}

static size_t count_axes(const char *spec)
{
    size_t n = 1;
    for (; *spec; spec++)
        if (at_comma(spec))
            n++;
    return n;
}

static int parse_axes(Slice *s, const char *spec, char err[512])
{
    const SafetensorsTensor *t = s->tensor;
    const char *dots = strstr(spec, "..."), *p = spec;
    size_t given = count_axes(spec), axis = 0;
    if (dots)
        given--;
    if (given > t->rank)
        return tensor_fail(err, NULL, t, "slice \"%.60s\" has %zu axes, the tensor has %zu", spec, given, t->rank);
    for (;; p++) {
        p += strspn(p, " ");
        if (p == dots) {
            axis += t->rank - given; /* "..." stands for the axes that are not written */
            p += 3 + strspn(p + 3, " ");
            if (*p && *p != ',')
                return tensor_fail(err, NULL, t, "slice \"%.60s\": \"...\" must stand alone between commas", spec);
        } else if (parse_axis(&p, t, axis, &s->axes[axis], err) != 0) {
            return -1;
        } else {
            axis++;
        }
        if (!at_comma(p))
            return 0;
    }
}

int slice_parse(Slice *s, const char *spec, const SafetensorsTensor *tensor, char err[512])
{
    *s = (Slice){.tensor = tensor, .elements = 1};
    if (dtype_bits(tensor->dtype) < 8)
        return tensor_fail(err, NULL, tensor, "numbers of %s are smaller than a byte: they cannot be taken one by one",
                           dtype_name(tensor->dtype));
    s->axes = calloc(tensor->rank + 1, sizeof *s->axes);
    if (!s->axes)
        return tensor_fail(err, NULL, tensor, "out of memory for %zu axes", tensor->rank);
    for (size_t i = 0; i < tensor->rank; i++)
        s->axes[i] = (SliceAxis){.count = tensor->shape[i], .step = 1};
    if (spec && spec[strspn(spec, " ")] && parse_axes(s, spec, err) != 0) {
        slice_free(s);
        return -1;
    }
    for (size_t i = 0; i < tensor->rank; i++)
        s->elements *= s->axes[i].count; /* at most the tensor's */
    return 0;
}

void slice_free(Slice *s)
{
    free(s->axes);
    *s = (Slice){0};
}

size_t slice_rank(const Slice *s)
{
    size_t rank = 0;
    for (size_t i = 0; i < s->tensor->rank; i++)
        if (!s->axes[i].dropped)
            rank++;
    return rank;
}

uint64_t slice_size(const Slice *s, size_t axis)
{
    for (size_t i = 0; i < s->tensor->rank; i++)
        if (!s->axes[i].dropped && axis-- == 0)
            return s->axes[i].count;
    return 0;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

int slice_walk(SliceWalk *w, const Slice *s, uint64_t position, char err[512])
{
    const SafetensorsTensor *t = s->tensor;
    *w = (SliceWalk){.slice = s, .outer = t->rank, .run = 1, .left = s->elements - position};
    w->index = calloc(t->rank + 1, sizeof *w->index);
    if (!w->index)
        return tensor_fail(err, NULL, t, "out of memory for %zu axes", t->rank);
    if (s->elements == 0)
        return 0;
    while (w->outer > 0 && s->axes[w->outer - 1].count == t->shape[w->outer - 1] && s->axes[w->outer - 1].step == 1)
        w->run *= t->shape[--w->outer];
    if (w->outer > 0 && s->axes[w->outer - 1].step == 1)
        w->run *= s->axes[--w->outer].count;
    w->skip = position % w->run;
    uint64_t row = position / w->run;
    for (size_t i = w->outer; i-- > 0; row /= s->axes[i].count)
        w->index[i] = row % s->axes[i].count;
    return 0;
}

bool slice_next(SliceWalk *w, uint64_t *first, uint64_t *count)
{
    const Slice *s = w->slice;
    if (w->left == 0)
        return false;
    uint64_t at = 0;
    for (size_t i = 0; i < s->tensor->rank; i++)
        at = at * s->tensor->shape[i] + s->axes[i].start +
             w->index[i] * (uint64_t)s->axes[i].step; /* a negative step wraps, and so subtracts */
    *first = at + w->skip;
    *count = MIN(w->run - w->skip, w->left);
    w->left -= *count;
    w->skip = 0;
    for (size_t i = w->outer; i-- > 0;) {
        if (++w->index[i] < s->axes[i].count)
            break;
        w->index[i] = 0;
    }
    return true;
}

void slice_walk_end(SliceWalk *w)
{
    free(w->index);
    w->index = NULL;
}

int slice_gather(const Slice *s, uint64_t position, size_t n, unsigned char *out, char err[512])
{
    size_t size = dtype_bits(s->tensor->dtype) / 8;
    const unsigned char *data = safetensors_data(s->tensor);
    SliceWalk w;
    uint64_t first, count;
    if (slice_walk(&w, s, position, err) != 0)
        return -1;
    for (size_t done = 0; done < n && slice_next(&w, &first, &count); done += (size_t)count) {
        count = MIN(count, n - done);
        memcpy(out + done * size, data + first * size, (size_t)count * size);
    }
    slice_walk_end(&w);
    return 0;
}
