/* Opening a checkpoint: what a model argument means, shards and their index, the Hugging Face cache, the default model,
 * and what is said of files that are something else. */
#include "base/base.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/locate.h"
#include "checkpoint/split.h"
#include "checkpoint/weights.h"

static char root[256], home[4096]; /* a fresh folder; the working directory at the start */

/* ---- files ---- */

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* A path below root, in one of a few buffers that are used in turn. */
__attribute__((format(printf, 1, 2))) static const char *at(const char *fmt, ...)
{
    static char paths[8][5000];
    static unsigned next;
    char *path = paths[next++ % 8];
    size_t used = (size_t)snprintf(path, sizeof *paths, "%s/", root);
    va_list args;
    va_start(args, fmt);
    vsnprintf(path + used, sizeof *paths - used, fmt, args);
    va_end(args);
    return path;
}

static void make_folders(const char *path)
{
    char copy[5000];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(copy, 0700);
        *slash = '/';
    }
    mkdir(copy, 0700);
}

static void put_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        die(path);
}

static void put_text(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

/* A file of tensors of one byte, named by the letters of names; each byte is its name. */
static void put_tensors(const char *path, const char *names)
{
    char header[1000] = "{", file[1100];
    size_t used = 1, n = strlen(names);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"%c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", i ? "," : "",
                                 names[i], i, i + 1);
    used += (size_t)snprintf(header + used, sizeof header - used, "}");
    memset(file, 0, 8);
    file[0] = (char)(used & 255);
    file[1] = (char)(used >> 8);
    memcpy(file + 8, header, used);
    memcpy(file + 8 + used, names, n);
    put_bytes(path, file, 8 + used + n);
}

static void remove_tree(const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        execlp("rm", "rm", "-rf", path, (char *)NULL);
        _exit(127);
    }
    waitpid(child, NULL, 0);
}

/* ---- what a model argument means ---- */

/* model must open, with these tensors (their bytes, in order) and this folder; index: is there one? */
static void opens(const char *model, const char *tensors, const char *directory, bool from_directory, bool index)
{
    for (int into_memory = 0; into_memory < 2; into_memory++) {
        Checkpoint c;
        char err[512], found[64] = "";
        int result = checkpoint_open(&c, model, into_memory, err);
        check(result == 0, "%s: %s", model, err);
        if (result != 0)
            return;
        for (size_t i = 0; i < checkpoint_tensor_count(&c) && i < 60; i++)
            found[i] = (char)*safetensors_data(checkpoint_tensor(&c, i));
        check(strcmp(found, tensors) == 0, "%s: tensors %s instead of %s", model, found, tensors);
        check(strcmp(c.directory, directory) == 0, "%s: folder %s", model, c.directory);
        check(c.from_directory == from_directory && !c.index_path == !index && strcmp(c.argument, model) == 0,
              "%s: kind", model);
        for (const char *name = tensors; *name; name++) {
            SafetensorsTensor t;
            check(safetensors_find_n(&c.st, name, 1, &t) == 0 && *safetensors_data(&t) == (unsigned char)*name,
                  "%s: %c", model, *name);
        }
        checkpoint_close(&c);
        checkpoint_close(&c);
        char *folder = locate_folder(model, err);
        check(folder && strcmp(folder, directory) == 0, "%s: folder %s", model, folder ? folder : err);
        free(folder);
    }
}

/* model must be refused, with that in the sentence. */
static void refuses(const char *model, const char *want)
{
    Checkpoint c;
    char err[512] = "";
    int result = checkpoint_open(&c, model, false, err);
    check(result != 0 && strstr(err, want), "%.200s: '%s' instead of '%s'", model, err, want);
    check(!c.argument && !c.directory && !c.index_path && !c.st.mapped && !c.st.shards, "%.200s: something stays open",
          model);
    checkpoint_close(&c);
}

static void test_arguments(void)
{
    make_folders(at("one"));
    put_tensors(at("one/model.safetensors"), "abc");
    put_tensors(at("one/other.st"), "x");
    opens(at("one"), "abc", at("one"), true, false);
    opens(at("one/"), "abc", at("one/"), true, false);
    opens(at("one/model.safetensors"), "abc", at("one"), false, false);
    opens(at("one/other.st"), "x", at("one"), false, false);
    make_folders(at("with space \xe5\x90\x8d"));
    put_tensors(at("with space \xe5\x90\x8d/model.safetensors"), "s");
    opens(at("with space \xe5\x90\x8d"), "s", at("with space \xe5\x90\x8d"), true, false);
    if (chdir(at("one")) != 0)
        die("chdir");
    opens("model.safetensors", "abc", ".", false, false);
    opens("./model.safetensors", "abc", ".", false, false);
    opens(".", "abc", ".", true, false);
    opens("./", "abc", "./", true, false);
    opens("../one", "abc", "../one", true, false);
    opens("../one//", "abc", "../one//", true, false);
    if (chdir(root) != 0) /* where no model lies; one may lie where the tests were started */
        die("chdir");
    refuses("model.safetensors", "model.safetensors: No such file or directory; ./download.sh fetches a model");
    if (chdir(home) != 0)
        die("chdir");
    if (symlink(at("one/model.safetensors"), at("link.safetensors")) != 0
        || symlink("nowhere", at("one/broken.safetensors")) != 0)
        die("symlink");
    opens(at("link.safetensors"), "abc", root, false, false);
    refuses(at("one/broken.safetensors"), "is a link to a file that is not there; ./download.sh fetches it");
    refuses(at("nothing"), "No such file or directory; ./download.sh fetches a model");
    refuses(at("one/model.safetensors/x"), "Not a directory");
    refuses("", "./download.sh");
    refuses("/dev/null", "is not a regular file");
    refuses("-", "./download.sh");
    char err[512];
    check(!locate_folder(at("nothing"), err) && strstr(err, "No such file"), "%s", err);
    char *folder = locate_folder("/dev/null", err);
    check(folder && strcmp(folder, "/dev") == 0, "folder of /dev/null");
    free(folder);
}

/* Paths of almost 4096 characters, and of too many. */
static void test_long_paths(void)
{
    char piece[201], path[5000];
    memset(piece, 'p', 200);
    piece[200] = '\0';
    snprintf(path, sizeof path, "%s", root);
    while (strlen(path) < 3800) {
        size_t used = strlen(path);
        snprintf(path + used, sizeof path - used, "/%s", piece);
    }
    make_folders(path);
    char file[6000];
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    put_tensors(file, "l");
    opens(path, "l", path, true, false);
    opens(file, "l", path, false, false);
    snprintf(file, sizeof file, "%s/%s/%s", path, piece, piece);
    refuses(file, "File name too long");
    snprintf(file, sizeof file, "%s/none.safetensors", path);
    refuses(file, "none.safetensors: No such file or directory; ./download.sh"); /* the sentence still has its end */
}

static void test_folders_without_weights(void)
{
    make_folders(at("empty"));
    refuses(at("empty"),
            "has neither model.safetensors nor model.safetensors.index.json; ./download.sh fetches a model");
    put_text(at("empty/config.json"), "{}");
    refuses(at("empty"), "has neither");
    put_text(at("empty/pytorch_model.bin"), "");
    refuses(at("empty"),
            "has no model.safetensors, but pytorch_model.bin: a PyTorch checkpoint, which run does not read");
    put_text(at("empty/b.gguf"), "");
    put_text(at("empty/a.gguf"), "");
    refuses(at("empty"), "but a.gguf: a GGUF file, which is for llama.cpp: ./download.sh");
    put_text(at("empty/model-00001-of-00002.safetensors"), "");
    refuses(at("empty"), "but model-00001-of-00002.safetensors: a shard, whose index is missing");
    put_text(at("empty/adapter.safetensors"), "");
    refuses(at("empty"), "but adapter.safetensors: name that file itself");
    put_text(at("empty/model.safetensors.fdf756fa.part"), "");
    refuses(at("empty"), "but model.safetensors.fdf756fa.part: an unfinished file: do a split or merge again; a download is resumed by ./download.sh");
}

/* ---- shards ---- */

static void put_index(const char *folder, const char *map)
{
    char text[20000];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":5},\"weight_map\":%s}", map);
    put_text(at("%s/model.safetensors.index.json", folder), text);
}

static void test_shards(void)
{
    make_folders(at("two"));
    put_tensors(at("two/m-2"), "cd");
    put_tensors(at("two/m-1"), "ba");
    put_index("two", "{\"d\":\"m-2\",\"a\":\"m-1\",\"b\":\"m-1\",\"c\":\"m-2\"}");
    opens(at("two"), "bacd", at("two"), true, true);
    opens(at("two/"), "bacd", at("two/"), true, true);
    opens(at("two/model.safetensors.index.json"), "bacd", at("two"), true, true);
    if (chdir(at("two")) != 0)
        die("chdir");
    opens("model.safetensors.index.json", "bacd", ".", true, true);
    if (chdir(home) != 0)
        die("chdir");
    /* shards may hold more than the index says, as in transformers */
    put_index("two", "{\"a\":\"m-1\",\"c\":\"m-2\"}");
    opens(at("two"), "bacd", at("two"), true, true);
    put_index("two", "{\"a\":\"m-1\"}");
    opens(at("two"), "ba", at("two"), true, true);
    put_index("two", "{\"a\":\"m-2\",\"c\":\"m-2\"}");
    refuses(at("two"), "model.safetensors.index.json: tensor \"a\" is not in m-2");
    put_index("two", "{\"a\":\"m-1\",\"b\":\"m-2\",\"c\":\"m-2\"}");
    refuses(at("two"), "tensor \"b\" is not in m-2");
    put_index("two", "{\"a\":\"m-1\",\"e\\u001b\":\"m-1\"}");
    refuses(at("two"), "tensor \"e\\x1b\" is not in m-1");
    put_index("two", "{\"a\":\"m-1\",\"x\":\"m-3\",\"y\":\"m-3\"}");
    refuses(at("two"), "model.safetensors.index.json: its shard m-3 is missing, with 2 tensors (\"x\" ...); "
                       "./download.sh fetches it");
    put_index("two", "{\"a\":\"m-1\",\"y\":\"m-3\"}");
    refuses(at("two"), "is missing, with 1 tensor (\"y\");");
    put_tensors(at("two/m-3"), "ax");
    put_index("two", "{\"a\":\"m-1\",\"x\":\"m-3\"}");
    refuses(at("two"), "m-3: tensor \"a\": is also in ");
    put_text(at("two/m-3"), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3968658944\n");
    refuses(at("two"), "m-3 is a Git LFS pointer, not the file itself; get that with git lfs pull or ./download.sh; "
                       "the real file has 3968658944 bytes");
    put_tensors(at("two/m-3"), "xyz");
    check(truncate(at("two/m-3"), 100) == 0, "truncate");
    refuses(at("two"), "bytes missing at the end: the file has 100");
    put_tensors(at("two/model.safetensors"), "q"); /* one file comes before an index, as in transformers */
    opens(at("two"), "q", at("two"), true, false);
    unlink(at("two/model.safetensors"));
}

static void test_shard_names(void)
{
    static const char *const names[] = {"../x", "/etc/passwd", "a/../../x", "..\\\\x", "..", ".", "", "m\\u0000",
                                        "sub/m"};
    make_folders(at("names/sub"));
    put_tensors(at("names/sub/m"), "a");
    put_tensors(at("x"), "a");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char map[100];
        snprintf(map, sizeof map, "{\"a\":\"%s\"}", names[i]);
        put_index("names", map);
        refuses(at("names"), "must be a plain file name");
    }
    put_index("names", "{\"a\":\"l\"}");
    if (symlink("sub/m", at("names/l")) != 0) /* links are fine: the Hugging Face cache is made of them */
        die("symlink");
    opens(at("names"), "a", at("names"), true, true);
    put_index("names", "{\"a\":\"...m\"}");
    put_tensors(at("names/...m"), "a");
    opens(at("names"), "a", at("names"), true, true);
}

static void test_bad_indexes(void)
{
    make_folders(at("bad"));
    put_index("bad", "{}");
    refuses(at("bad"), "is not an index of shards: it must have a \"weight_map\"");
    put_index("bad", "[]");
    refuses(at("bad"), "is not an index of shards");
    put_index("bad", "null");
    refuses(at("bad"), "is not an index of shards");
    put_index("bad", "{\"a\":1}");
    refuses(at("bad"), "weight_map must give every tensor the name of a file");
    put_index("bad", "{\"a\":null}");
    refuses(at("bad"), "weight_map must give every tensor the name of a file");
    put_index("bad", "{\"a\":\"x\",}");
    refuses(at("bad"), "model.safetensors.index.json: byte ");
    put_text(at("bad/model.safetensors.index.json"), "[]");
    refuses(at("bad"), "is not an index of shards");
    put_text(at("bad/model.safetensors.index.json"), "");
    refuses(at("bad"), "is empty; ./download.sh");
    put_text(at("bad/model.safetensors.index.json"), "Entry not found");
    refuses(at("bad"), "is \"Entry not found\"");
    put_text(at("bad/config.json"), "{\"hidden_size\":4}");
    refuses(at("bad/config.json"), "config.json is not an index of shards");
    char map[12000] = "{";
    size_t used = 1;
    for (int i = 0; i < 600; i++)
        used += (size_t)snprintf(map + used, sizeof map - used, "%s\"%d\":\"s%d\"", i ? "," : "", i, i % 300);
    snprintf(map + used, sizeof map - used, "}");
    put_index("bad", map);
    refuses(at("bad"), "its shard s0 is missing, with 2 tensors (\"0\" ...)");
}

/* ---- the Hugging Face cache ---- */

static void clear_environment(void)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

#define COMMIT "7ae557604adf67be50417f59c2c2f167def9a775"

/* A repository in the cache folder, as the hub's own library lays it out; its tensor is called name. */
static void put_repository(const char *cache, const char *id, const char *name)
{
    char target[64];
    make_folders(at("%s/%s/refs", cache, id));
    make_folders(at("%s/%s/blobs", cache, id));
    make_folders(at("%s/%s/snapshots/" COMMIT, cache, id));
    put_text(at("%s/%s/refs/main", cache, id), COMMIT);
    put_tensors(at("%s/%s/blobs/%s", cache, id, name), name);
    snprintf(target, sizeof target, "../../blobs/%s", name);
    if (symlink(target, at("%s/%s/snapshots/" COMMIT "/model.safetensors", cache, id)) != 0)
        die("symlink");
}

/* The cache at that place must be used, and named when it lacks a model. */
static void cache_is(const char *cache, const char *name)
{
    put_repository(cache, "models--Qwen--Q", name);
    opens("Qwen/Q", name, at("%s/models--Qwen--Q/snapshots/" COMMIT, cache), true, false);
    refuses("Qwen/none", at("%s); ./download.sh --cache Qwen/none fetches it", cache));
}

static void test_cache(void)
{
    clear_environment();
    refuses("Qwen/Q", "Qwen/Q: no such file or folder; ./download.sh");
    setenv("HOME", at("h"), 1);
    cache_is("h/.cache/huggingface/hub", "1");
    setenv("XDG_CACHE_HOME", at("xdg"), 1);
    cache_is("xdg/huggingface/hub", "2");
    setenv("HF_HOME", at("hf"), 1);
    cache_is("hf/hub", "3");
    setenv("HUGGINGFACE_HUB_CACHE", at("old"), 1);
    cache_is("old", "4");
    setenv("HF_HUB_CACHE", "~/new", 1);
    cache_is("h/new", "5");
    setenv("HF_HUB_CACHE", "", 1); /* empty is as good as not set */
    setenv("HUGGINGFACE_HUB_CACHE", "", 1);
    opens("Qwen/Q", "3", at("hf/hub/models--Qwen--Q/snapshots/" COMMIT), true, false);
    put_repository("hf/hub", "models--gpt2", "g");
    opens("gpt2", "g", at("hf/hub/models--gpt2/snapshots/" COMMIT), true, false);

    const char *snapshot = at("hf/hub/models--Qwen--Q/snapshots/" COMMIT);
    put_text(at("hf/hub/models--Qwen--Q/refs/main"), COMMIT "\n");
    opens("Qwen/Q", "3", snapshot, true, false);
    put_text(at("hf/hub/models--Qwen--Q/refs/main"), "0000000000000000000000000000000000000000");
    refuses("Qwen/Q", "the Hugging Face cache has no snapshot of it for refs/main");
    put_text(at("hf/hub/models--Qwen--Q/refs/main"), "../snapshots/" COMMIT);
    refuses("Qwen/Q", "has no snapshot of it for refs/main");
    put_text(at("hf/hub/models--Qwen--Q/refs/main"), "");
    refuses("Qwen/Q", "has no snapshot of it for refs/main");
    unlink(at("hf/hub/models--Qwen--Q/refs/main")); /* no other snapshot is taken instead */
    refuses("Qwen/Q", "./download.sh --cache Qwen/Q fetches it");
    put_text(at("hf/hub/models--Qwen--Q/refs/main"), COMMIT);
    unlink(at("hf/hub/models--Qwen--Q/blobs/3"));
    refuses("Qwen/Q", "model.safetensors is a link to a file that is not there");
    unlink(at("hf/hub/models--Qwen--Q/snapshots/" COMMIT "/model.safetensors"));
    refuses("Qwen/Q", "has neither model.safetensors nor");
    refuses("Qwen/../Q", "No such file");
    refuses("../Q", "No such file");
    refuses("a/b/c", "No such file");
    refuses("Qwen/Q.safetensors", "Qwen/Q.safetensors: No such file");
    make_folders(at("Qwen/Q"));
    put_tensors(at("Qwen/Q/model.safetensors"), "f");
    if (chdir(root) != 0)
        die("chdir");
    opens("Qwen/Q", "f", "Qwen/Q", true, false); /* a folder comes before the cache */
    if (chdir(home) != 0)
        die("chdir");
}

/* ---- files that are something else ---- */

static void test_wrong_files(void)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *want;
    } cases[] = {
#define B(text) text, sizeof text - 1
        {B(""), "is empty; ./download.sh"},
        {B("version https://git-lfs.github.com/spec/v1\noid sha256:fdf7\nsize 988097824\n"),
         "is a Git LFS pointer, not the file itself; get that with git lfs pull or ./download.sh; the real file has "
         "988097824 bytes"},
        {B("version https://git-lfs.github.com/spec/v1\n"), "get that with git lfs pull or ./download.sh"},
        {B("<!DOCTYPE html>\n<html><body>Sign in</body>"),
         "is an HTML page that was saved under this name; ./download.sh fetches it"},
        {B("\n\n  <HTML lang=en>"), "is an HTML page"},
        {B("\xef\xbb\xbf<!doctype HTML>"), "is an HTML page"},
        {B("Entry not found"),
         "is \"Entry not found\", a server's message that was saved under this name; ./download.sh fetches it"},
        {B("Repository not found"), "is \"Repository not found\", a server's message"},
        {B("Invalid rev id: main"), "is \"Invalid rev id\", a server's message"},
        {B("Invalid username or password."), "a server's message"},
        {B("Access to model X is restricted. You must have access"), "a server's message"},
        {B("{\"error\":\"Invalid username or password.\"}"), "is JSON, most likely a server's message"},
        {B("{\"metadata\":{},\"weight_map\":{\"a\":\"b\"}}"),
         "is an index of shards; its name should end in .index.json"},
        {B("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"),
         "is XML, most likely a server's message"},
        {B("\x1f\x8b\x08\0\0\0\0\0\0\3"), "is compressed with gzip; unpack it with gunzip"},
        {B("\x28\xb5\x2f\xfd\4\0\0\0\0"), "is compressed with zstd"},
        {B("\xfd" "7zXZ\0\0\0\0"), "is compressed with xz"},
        {B("BZh91AY&SY"), "is compressed with bzip2"},
        {B("PK\3\4\0\0\0\0\0\0archive/data.pkl"), "is a zip archive, most likely a PyTorch checkpoint (.bin, .pt); run "
                                                  "reads safetensors only: ./download.sh"},
        {B("\x80\2}q\0(X\1\0\0\0"), "is a Python pickle, most likely a PyTorch checkpoint"},
        {B("\x80\4\x95\0\0\0\0\0\0\0\0"), "is a Python pickle"},
        {B("GGUF\3\0\0\0\0\0\0\0"), "is a GGUF file, which is for llama.cpp"},
        {B("\x89HDF\r\n\x1a\n\0\0\0"), "is an HDF5 file (TensorFlow, Keras)"},
        {B("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
         "is full of zeros, as a download that was cut short leaves them"},
        {B("# Qwen2.5\n\nIntroduction"), "is a text file, not a safetensors file; ./download.sh fetches a model"},
        {B("x"), "is a text file, not a safetensors file"},
        /* what may be a damaged safetensors file keeps its own message */
        {B("\2\0\0\0\0\0\0\0{"), "1 byte missing at the end: the file has 9, its header alone takes 8 + 2; "
                                 "./download.sh mends a download that was cut short"},
        {B("\2\0\0\0\0\0\0\0{}\0"), "1 byte too many"},
        {B("\4\0\0\0\0\0\0\0{}\0\0"), "the header is padded with NUL bytes; only spaces are allowed"},
        {B("\x7b\0\0\0\0\0\0\0{}"), "121 bytes missing at the end"}, /* the length's first byte is a { */
        {B("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "announce a header of 18446744073709551615 bytes"},
        {B("\0\0\0\0\0\0\0\0"), "the header is not valid JSON"},
        {B("\1\0\0"), "5 bytes missing"},
        {B("\x30\0\0\0\0\0\0\0{\"a\":"), "43 bytes missing at the end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_bytes(at("w.safetensors"), cases[i].bytes, cases[i].length);
        refuses(at("w.safetensors"), cases[i].want);
        refuses(at("w.safetensors"), "w.safetensors");
    }
    char tar[512] = "model.safetensors";
    memcpy(tar + 257, "ustar", 5);
    put_bytes(at("w.safetensors"), tar, sizeof tar);
    refuses(at("w.safetensors"), "is a tar archive");
}

/* ---- config.json ---- */

static void test_reading_config(void)
{
    char err[512] = "";
    Checkpoint c;
    Config config;
    check(checkpoint_open(&c, at("one"), false, err) == 0, "%s", err);
    check(checkpoint_read_config(&c, &config, err) != 0
              && strstr(err, "/config.json is missing, which tells the model's sizes; ./download.sh"),
          "%s", err);
    put_text(at("one/config.json"), "{\"architectures\":[\"LlamaForCausalLM\"]}");
    check(checkpoint_read_config(&c, &config, err) != 0 && strstr(err, "/config.json")
              && strstr(err, "LlamaForCausalLM"),
          "%s", err);
    checkpoint_close(&c);
    check(checkpoint_open(&c, "tests/demo", false, err) == 0 && checkpoint_read_config(&c, &config, err) == 0, "%s",
          err);
    check(config.dim > 0 && config.n_layers > 0, "the demo model's config.json");
    config_free(&config);
    checkpoint_close(&c);
}

/* One byte of embedding, and of the head that a tied model has all the same: another one is a head of its own. */
static void test_tied_head(void)
{
    static const struct {
        const char *rest, *data; /* the header after the embedding's entry; the bytes */
        bool tied;
    } cases[] = {
        {"}", "a", true},
        {",\"lm_head.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", "aa", true},
        {",\"lm_head.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", "ab", false},
        {",\"lm_head.weight\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}", "aa", false},
    };
    make_folders(at("tied"));
    put_text(at("tied/config.json"),
             "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":8,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":10,"
             "\"tie_word_embeddings\":true}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[512] = {0}, err[512];
        int header = snprintf(bytes + 8, sizeof bytes - 8, "{\"model.embed_tokens.weight\":%s%s",
                              "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", cases[i].rest);
        int all = snprintf(bytes + 8 + header, sizeof bytes - 8 - (size_t)header, "%s", cases[i].data) + 8 + header;
        bytes[0] = (char)(header & 255);
        bytes[1] = (char)(header >> 8);
        put_bytes(at("tied/model.safetensors"), bytes, (size_t)all);
        Checkpoint c;
        Config config;
        check(checkpoint_open(&c, at("tied"), false, err) == 0 && checkpoint_read_config(&c, &config, err) == 0, "%s",
              err);
        check(config.tie_word_embeddings == cases[i].tied, "case %zu", i);
        config_free(&config);
        checkpoint_close(&c);
    }
}

/* ---- the default model ---- */

/* What locate_default() says in a copy of this program at `program`, started in `folder`: run with an environment
 * variable. */
static void default_is(const char *program, const char *folder, const char *want)
{
    int ends[2];
    char said[1024] = "";
    if (pipe(ends) != 0)
        die("pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        const char *first = emulated() ? getenv("EMULATOR") : program;
        if (chdir(folder) == 0 && setenv("TELL_DEFAULT", "1", 1) == 0)
            execlp(first, first, first == program ? NULL : program, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (ssize_t n, used = 0; (n = read(ends[0], said + used, sizeof said - 1 - (size_t)used)) > 0;)
        used += n;
    close(ends[0]);
    waitpid(child, NULL, 0);
    check(strncmp(said, want, strlen(want)) == 0, "started in %s: '%s' instead of '%s'", folder, said, want);
}

static int tell_default(void)
{
    bool is_demo;
    char err[512], *path = locate_default(&is_demo, err);
    printf("%s %s\n", path ? is_demo ? "demo" : "here" : "none", path ? path : err);
    free(path);
    return 0;
}

static void test_default(void)
{
    char *self = realpath("/proc/self/exe", NULL);
    if (!self) {
        skip("the default model: no /proc/self/exe");
        return;
    }
    make_folders(at("p/bin"));
    make_folders(at("away"));
    FILE *from = fopen(self, "rb"), *to = fopen(at("p/bin/run"), "wb");
    for (int c; from && to && (c = getc(from)) != EOF;)
        putc(c, to);
    if (!from || fclose(from) != 0 || !to || fclose(to) != 0 || chmod(at("p/bin/run"), 0700) != 0)
        die("copy");
    free(self);
    char real[4096], want[4200];
    if (!realpath(root, real))
        die("realpath");
    default_is(at("p/bin/run"), at("away"),
               "none there is no model.safetensors here, and no demo model beside the program; ./download.sh");
    make_folders(at("p/share/run/demo"));
    put_tensors(at("p/share/run/demo/model.safetensors"), "d");
    snprintf(want, sizeof want, "demo %s/p/share/run/demo\n", real);
    default_is(at("p/bin/run"), at("away"), want);
    make_folders(at("p/bin/tests/demo"));
    put_text(at("p/bin/tests/demo/model.safetensors.index.json"), "{}");
    snprintf(want, sizeof want, "demo %s/p/bin/tests/demo\n", real);
    default_is(at("p/bin/run"), at("away"), want);
    if (symlink(at("p/bin/run"), at("away/run")) != 0)
        die("symlink");
    default_is(at("away/run"), at("away"), want);
    put_text(at("away/model.safetensors.index.json"), "{}");
    default_is(at("p/bin/run"), at("away"), "here .\n");
    default_is(at("p/bin/run"), at("one"), "here .\n");
}

/* ---- sharded models of the golden data ---- */

static void test_golden(const char *golden)
{
    char path[1000], err[512];
    Checkpoint c;
    Config config;
    TransformerWeights w = {.mode = MODE_BF16};
    snprintf(path, sizeof path, "%s/given/tiny/sharded", golden);
    check(checkpoint_open(&c, path, false, err) == 0 && c.st.n_shards >= 10, "%s", err);
    check(checkpoint_read_config(&c, &config, err) == 0, "%s", err);
    check(weights_load(&c.st, &config, w.mode, &w, err) == 0, "%s", err);
    for (size_t i = 1; i < checkpoint_tensor_count(&c); i++) {
        const SafetensorsTensor *a = checkpoint_tensor(&c, i - 1), *b = checkpoint_tensor(&c, i);
        check(a->file == b->file ? a->offset <= b->offset : strcmp(a->file->path, b->file->path) < 0,
              "order of shard and offset");
    }
    weights_free(&w);
    config_free(&config);
    checkpoint_close(&c);
}

/* A file that is cut while it is open: what was read of it is not trusted, and no copy of it is made. */
static void test_cut(void)
{
    Checkpoint mapped, in_memory;
    char path[5000], err[512] = "";
    snprintf(path, sizeof path, "%s", at("cut.safetensors"));
    put_tensors(path, "abcdef");
    check(checkpoint_open(&mapped, path, false, err) == 0 && checkpoint_open(&in_memory, path, true, err) == 0, "%s",
          err);
    check(checkpoint_check_sizes(&mapped, err) == 0, "%s", err);
    off_t size = (off_t)mapped.st.mapped_size;
    for (int gone = 1; gone < 7; gone += 5) { /* some of the data, all of them */
        check(truncate(path, size - gone) == 0, "%s", path);
        check(checkpoint_check_sizes(&mapped, err) == -1 && strstr(err, "cut.safetensors had"), "%s", err);
        check(checkpoint_check_sizes(&in_memory, err) == 0, "what was read into memory stays: %s", err);
        check(split_merge(&mapped, at("copy.safetensors"), false, NULL, NULL, err) == -1 && strstr(err, "became shorter"),
              "%d bytes are gone: %s", gone, err);
        check(access(at("copy.safetensors"), F_OK) != 0, "a copy with zeros for what is gone");
    }
    checkpoint_close(&mapped);
    checkpoint_close(&in_memory);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR"), *golden = getenv("GOLDEN");
    if (getenv("TELL_DEFAULT"))
        return tell_default();
    snprintf(root, sizeof root, "%s/checkpoint-XXXXXX", tmp && strlen(tmp) < 200 && *tmp ? tmp : "/tmp");
    if (!mkdtemp(root) || !getcwd(home, sizeof home))
        die(root);
    test_arguments();
    test_long_paths();
    test_folders_without_weights();
    test_shards();
    test_shard_names();
    test_bad_indexes();
    test_wrong_files();
    test_reading_config();
    test_cut();
    test_tied_head();
    test_default();
    if (golden && *golden)
        test_golden(golden);
    else
        skip("a model of ten shards: GOLDEN is not set");
    test_cache(); /* changes the environment */
    remove_tree(root);
    return report("checkpoint");
}
