#include "commands/map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/output.h"
#include "commands/terminal.h"

static void draw_row(char edge, const int widths[3], const char *const texts[3])
{
    for (int i = 0; i < 3; i++)
        printf("%c%-*.*s", edge, widths[i], widths[i], texts[i]);
    printf("%c\n", edge);
}

/* As long as the widest cell and the longest bar, of a figure of 100 columns. */
#define DASHES "----------------------------------------------------------------------"
#define HASHES "##########################################################################"

/* " 988097824 bytes", or " 988.1 MB" where that is too wide. */
static void size_text(size_t bytes, int width, char out[48])
{
    char size[32];
    if (snprintf(out, 48, " %zu bytes", bytes) > width)
        snprintf(out, 48, " %s", human_bytes(bytes, size));
}

/* Draw the chapter's figure: length, header and data of one file. */
static void draw_parts(const SafetensorsFile *f, int width)
{
    const int header = width < 56 ? 14 : 20, widths[3] = {10, header, MAX(width - 4 - 10 - header, 8)};
    char header_bytes[48], data_bytes[48], start[32], end[32];
    size_text(f->header_len, widths[1], header_bytes);
    size_text(f->data_size, widths[2], data_bytes);
    snprintf(start, sizeof start, "%zu", 8 + f->header_len);
    snprintf(end, sizeof end, "%zu", f->mapped_size);
    printf("\n%-*s%-*s%-*s%*s\n", widths[0] + 1, "0", widths[1] + 1, "8", (int)strlen(start), start,
           widths[2] + 2 - (int)strlen(start), end);
    draw_row('+', widths, (const char *const[3]){DASHES, DASHES, DASHES});
    draw_row('|', widths, (const char *const[3]){" N", " header: JSON", " data"});
    draw_row('|', widths, (const char *const[3]){" 8 bytes", header_bytes, data_bytes});
    draw_row('+', widths, (const char *const[3]){DASHES, DASHES, DASHES});
}

/* Tensors of all layers under one name: "model.layers.*.mlp.up_proj.weight". */
typedef struct {
    char *name;
    uint64_t bytes, count;
} Group;

static char *group_name(const SafetensorsTensor *t)
{
    char *name = escaped(t->name, t->name_length), *w = name;
    for (const char *r = name; *r;) {
        size_t digits = r == name || r[-1] == '.' ? strspn(r, "0123456789") : 0;
        if (digits && (r[digits] == '.' || !r[digits])) {
            *w++ = '*';
            r += digits;
        } else {
            *w++ = *r++;
        }
    }
    *w = 0;
    return name;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Group *)a)->name, ((const Group *)b)->name);
}

static int by_bytes(const void *a, const void *b)
{
    const Group *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return by_name(a, b);
}

/* Make one group of those with the same name and sort them by size. Returns how many there are then. */
static size_t merge_groups(Group *groups, size_t n)
{
    size_t kept = 0;
    qsort(groups, n, sizeof *groups, by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept && !strcmp(groups[kept - 1].name, groups[i].name)) {
            groups[kept - 1].bytes += groups[i].bytes;
            groups[kept - 1].count++;
            free(groups[i].name);
        } else {
            groups[kept++] = groups[i];
        }
    }
    qsort(groups, kept, sizeof *groups, by_bytes);
    return kept;
}

static void draw_bar(const Group *g, uint64_t total, int name_width, int width)
{
    double share = total ? (double)g->bytes / (double)total : 0;
    int room = width - name_width - 10, bar = (int)(share * room + 0.5);
    bool color = use_color(stdout);
    char count[24] = "";
    if (g->count > 1)
        snprintf(count, sizeof count, " x%" PRIu64, g->count);
    int padding = print_end(g->name, name_width - (int)strlen(count));
    printf("%s%*s %5.1f%%%s%s%.*s%s\n", count, padding, "", 100 * share, bar ? "  " : "", color ? "\033[36m" : "", bar,
           HASHES, color ? "\033[0m" : "");
}

#define BARS 8

void draw_map(const Checkpoint *c)
{
    int width = MAX(MIN(terminal_width(stdout) - 1, 100), 40);
    size_t n = checkpoint_tensor_count(c);
    if (!c->st.n_shards)
        draw_parts(&c->st, width);
    if (n > 0)
        printf("\nshare of the data\n");
    Group *groups = xcalloc(n, sizeof *groups);
    uint64_t total = 0;
    int name_width = 16;
    for (size_t i = 0; i < n; i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        groups[i] = (Group){group_name(t), t->length, 1};
        total += t->length;
    }
    n = merge_groups(groups, n);
    for (size_t i = BARS; i < n; i++) {
        groups[BARS - 1].bytes += groups[i].bytes;
        groups[BARS - 1].count += groups[i].count;
    }
    if (n > BARS) {
        free(groups[BARS - 1].name);
        groups[BARS - 1].name = xstrdup("others");
    }
    for (size_t i = 0; i < MIN(n, BARS); i++)
        name_width = MAX(name_width, text_columns(groups[i].name) + (groups[i].count > 1 ? 6 : 0));
    name_width = MIN(name_width, width * 5 / 9);
    for (size_t i = 0; i < MIN(n, BARS); i++)
        draw_bar(&groups[i], total, name_width, width);
    for (size_t i = 0; i < n; i++)
        free(groups[i].name);
    free(groups);
}
