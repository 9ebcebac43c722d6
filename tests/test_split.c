/* checkpoint/split.c: splitting, merging, and the writer of one shard. */
#include "base/base.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/split.h"
#include "checkpoint/writer.h"
#include "check.h"
#include "model_files.h"

/* Five tensors in three layers, of different types, none of them aligned, with metadata and a name that needs escapes.
 */
static void write_mixed(const char *path)
{
    unsigned char data[3 + 16 + 10 + 8 + 6];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i + 1);
    write_model(path,
                "{\"__metadata__\":{\"format\":\"pt\",\"a \\\"key\\\"\":\"\\u00e9\\n\"},"
                "\"embed\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                "\"layers.0.w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[3,19]},"
                "\"layers.1.\\\"w\\u0000\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[19,29]},"
                "\"layers.0.v\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[29,37]},"
                "\"layers.10.w\":{\"dtype\":\"I16\",\"shape\":[3,1],\"data_offsets\":[37,43]}}  ",
                data, sizeof data);
}

static void check_same_tensors(Checkpoint *a, Checkpoint *b)
{
    check(checkpoint_tensor_count(a) == checkpoint_tensor_count(b), "as many tensors");
    for (size_t i = 0; i < checkpoint_tensor_count(a); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(a, i);
        SafetensorsTensor u;
        bool found = safetensors_find_n(&b->st, t->name, t->name_length, &u) == 0;
        check(found && t->dtype == u.dtype && t->rank == u.rank
                  && !memcmp(t->shape, u.shape, t->rank * sizeof *t->shape)
                  && !memcmp(safetensors_data(t), safetensors_data(&u), (size_t)t->length),
              "%s", t->name);
        size_t size = dtype_bits(u.dtype) / 8;
        check(found && (size_t)(safetensors_data(&u) - u.file->mapped) % size == 0 && (8 + u.file->header_len) % 8 == 0,
              "%s: aligned", t->name);
    }
    for (size_t i = 0; i < (b->st.n_shards ? b->st.n_shards : 1); i++) {
        const JsonValue *m = json_get((b->st.n_shards ? &b->st.shards[i] : &b->st)->header, "__metadata__");
        check(json_string_is(json_get(m, "format"), "pt") && json_string_is(json_get(m, "a \"key\""), "\xc3\xa9\n"),
              "metadata");
    }
}

static void test_split(void)
{
    static const struct {
        uint64_t most; /* 0: by layer */
        size_t shards;
    } cases[] = {{0, 4}, {1, 5}, {16, 4}, {24, 2}, {1000, 1}};
    char err[512];
    const char *path = in_folder("mixed.safetensors");
    write_mixed(path);
    Checkpoint c;
    open_model(&c, path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char split[32], merged[32];
        size_t shards, length;
        snprintf(split, sizeof split, "split%zu", i);
        snprintf(merged, sizeof merged, "merged%zu", i);
        const char *to = in_folder(split), *back = in_folder(merged);
        check(split_model(&c, to, cases[i].most, false, NULL, NULL, &shards, err) == 0, "%s", err);
        check(shards == cases[i].shards, "%zu shards of at most %" PRIu64, shards, cases[i].most);
        Checkpoint parts;
        open_model(&parts, to);
        check(parts.st.n_shards == (shards > 1 ? shards : 0), "opened as %zu", parts.st.n_shards);
        check_same_tensors(&c, &parts);
        if (parts.index_path) {
            char *index = file_read(parts.index_path, 100000, &length, err);
            check(index && strstr(index, "\"total_size\": 43"), "total_size");
            free(index);
        }
        check(split_merge(&parts, back, false, NULL, NULL, err) == 0, "%s", err);
        Checkpoint one;
        open_model(&one, back);
        check_same_tensors(&c, &one);
        checkpoint_close(&one);
        check(split_model(&c, to, cases[i].most, false, NULL, NULL, &shards, err) != 0 && strstr(err, "exists"), "%s", err);
        check(split_merge(&parts, back, false, NULL, NULL, err) != 0 && strstr(err, "exists"), "%s", err);
        checkpoint_close(&parts);
    }
    const char *hard = in_folder("hard.safetensors"), *soft = in_folder("soft.safetensors");
    check(link(path, hard) == 0 && symlink(path, soft) == 0, "links");
    check(split_merge(&c, path, false, NULL, NULL, err) != 0 && strstr(err, "same file"), "%s", err);
    check(split_merge(&c, hard, false, NULL, NULL, err) != 0 && strstr(err, "same file"), "%s", err);
    check(split_merge(&c, soft, false, NULL, NULL, err) != 0 && strstr(err, "same file"), "%s", err);
    check(split_merge(&c, in_folder("no/such/folder"), false, NULL, NULL, err) != 0, "a folder that is not there");
    checkpoint_close(&c);
    write_mixed(in_folder("again.safetensors"));
    check(same_bytes(path, in_folder("again.safetensors")), "the input is as it was");
}

/* A FileProgress that changes the file *context without a lock, as other programs do. */
static int change_file(void *context, uint64_t bytes)
{
    (void)bytes;
    int fd = open(context, O_WRONLY);
    check(fd >= 0 && pwrite(fd, "x", 1, 900) == 1, "%s", (const char *)context);
    close(fd);
    return 0;
}

/* Nothing appears that was made of a file which changed meanwhile. */
static void test_changed(void)
{
    char err[512], path[512];
    size_t shards;
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    snprintf(path, sizeof path, "%s", in_folder("changed.safetensors"));
    const char *to = in_folder("torn"), *one = in_folder("torn.safetensors");
    Checkpoint c;
    write_model(path, "{" ENTRY("a", "U8", "[1000]", "[0,1000]") "}", NULL, 1000);
    check(utimensat(AT_FDCWD, path, long_ago, 0) == 0, "an old file");
    open_model(&c, path);
    check(split_merge(&c, one, false, note_progress, &progress_calls, err) == 0 && unlink(one) == 0, "%s", err);
    check(split_merge(&c, one, false, change_file, path, err) != 0 && strstr(err, "was changed"), "%s", err);
    check(split_model(&c, to, 1 << 20, false, NULL, NULL, &shards, err) != 0 && strstr(err, "was changed"), "%s", err);
    check(!file_exists(one) && !file_exists(to), "nothing is left");
    checkpoint_close(&c);
}

/* A model of n tensors, of one byte each. */
static void write_bytes_model(const char *path, size_t n)
{
    Text header = {0};
    unsigned char *data = calloc(n, 1);
    for (size_t i = 0; i < n; i++) {
        char entry[128];
        int length = snprintf(entry, sizeof entry,
                              "%s\"t%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", i ? "," : "{", i, i,
                              i + 1);
        check(text_append(&header, entry, (size_t)length) == 0, "memory");
    }
    check(text_append(&header, "}", 1) == 0, "memory");
    write_model(path, header.bytes, data, n);
    text_free(&header);
    free(data);
}

/* A thousand shards can be written, and read by a process that may have fewer files open, until it asks for more. */
static void test_many_shards(void)
{
    char err[512];
    size_t shards;
    const char *path = in_folder("many.safetensors"), *to = in_folder("many");
    struct rlimit few = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY}, before;
    Checkpoint c;
    write_bytes_model(path, 1001);
    open_model(&c, path);
    check(split_model(&c, to, 1, false, NULL, NULL, &shards, err) != 0 && strstr(err, "1001 files") && !file_exists(to),
          "%s", err);
    checkpoint_close(&c);
    write_bytes_model(path, 200);
    open_model(&c, path);
    check(split_model(&c, to, 1, false, NULL, NULL, &shards, err) == 0 && shards == 200, "%s", err);
    checkpoint_close(&c);
    check(getrlimit(RLIMIT_NOFILE, &before) == 0, "the limit");
    few.rlim_max = before.rlim_max;
    check(setrlimit(RLIMIT_NOFILE, &few) == 0, "a soft limit of 100");
    open_model(&c, to);
    check(checkpoint_tensor_count(&c) == 200, "all shards are open");
    checkpoint_close(&c);
    few.rlim_max = 100;
    check(setrlimit(RLIMIT_NOFILE, &few) == 0, "a hard limit of 100");
    check(checkpoint_open(&c, to, false, err) != 0 && strstr(err, "200 shards") && strstr(err, "only 100 files"), "%s",
          err);
}

/* The writer refuses what readers would refuse. */
static void test_writer(void)
{
    char err[512];
    const char *path = in_folder("written.safetensors"), *source = in_folder("source.safetensors");
    SafetensorsFile st;
    write_model(source, "{" ENTRY("a", "I32", "[4,3,2]", "[0,96]") "}", NULL, 96);
    open_file(&st, source);
    SafetensorsTensor a = st.tensors[0], b = a;
    const SafetensorsTensor *both[2] = {&a, &b};
    WriterContent content = {.tensors = both, .n = 2};
    NewFile f = {.fd = -1};
    b.name = "__metadata__";
    b.name_length = 12;
    check(writer_write(&f, path, &content, err) != 0 && strstr(err, "__metadata__"), "%s", err);
    new_file_end(&f);
    b.name = "a";
    b.name_length = 1;
    check(writer_write(&f, path, &content, err) != 0 && strlen(err) > 10, "a name twice: %s", err);
    new_file_end(&f);
    check(access(path, F_OK) != 0 && access(in_folder("written.safetensors.part"), F_OK) != 0, "nothing is left");
    content.n = 0;
    check(writer_write(&f, path, &content, err) == 0 && new_files_publish(&f, 1, err) == 0, "%s", err);
    new_file_end(&f);
    SafetensorsFile empty;
    open_file(&empty, path);
    check(empty.n_tensors == 0 && empty.mapped_size == 16, "no tensors: {} and spaces");
    safetensors_close(&empty);
    safetensors_close(&st);
}

int main(void)
{
    open_folder("split");
    test_split();
    test_writer();
    test_changed();
    test_many_shards(); /* lowers a limit for good */
    remove_folder();
    return report("split");
}
