/* Mutated input for every parser, one entry each: `fuzz ENTRY [-max_total_time=S] [-runs=N] [-seed=N] CORPUS..`.
 *
 * Built with clang -fsanitize=fuzzer it is a libFuzzer target, which looks for input that reaches new code. Built
 * without (-DPLAIN) it has a seeded mutation loop of its own. Besides crashes and what the sanitizers see, the
 * entries check what must hold of any input: text that was written reads back the same, and so on. tests/fuzz.sh
 * builds and runs it; it is linked with -Wl,--wrap=exit, so that what ends the program ends one input here.
 */
#include "base/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/unicode.h"
#include "checkpoint/config.h"
#include "checkpoint/edit.h"
#include "checkpoint/journal.h"
#include "checkpoint/mask.h"
#include "checkpoint/npy.h"
#include "checkpoint/number.h"
#include "checkpoint/patch.h"
#include "checkpoint/slice.h"
#include "checkpoint/statistics.h"
#include "checkpoint/undo.h"
#include "checkpoint/weights.h"
#include "commands/info.c"
#include "commands/sampling.h"
#include "commands/tokenize.c"
#include "generate/config.h"

#define MOST 8192 /* bytes of an input */

static char folder[] = "/dev/shm/run-fuzz-XXXXXX";
static FILE *messages;

/* ---- the program around the parsers ------------------------------------------------------------------------------ */

void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

static jmp_buf at_exit;
static bool exit_is_caught;
_Noreturn void __real_exit(int code);
_Noreturn void __wrap_exit(int code);
_Noreturn void __wrap_exit(int code)
{
    if (exit_is_caught)
        longjmp(at_exit, 1);
    __real_exit(code);
}

static const Command generate_command = {"generate", "[PROMPT]", 0, 3, true, "a command", NULL};
const Command *this_command;

#define demand(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(messages, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const char *in_folder(const char *name)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void put_file(const char *name, const void *bytes, size_t n)
{
    int fd = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    demand(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

/* A copy that ends where the input ends, so that a sanitizer sees what reads beyond. */
static char *exact_copy(const void *bytes, size_t n)
{
    char *copy = xmalloc(n ? n : 1);
    memcpy(copy, bytes, n);
    return copy;
}

static char *with_nul(const void *bytes, size_t n)
{
    char *copy = xmalloc(n + 1);
    memcpy(copy, bytes, n);
    copy[n] = '\0';
    return copy;
}

/* A .safetensors file of this header, its data 0, 1, 2 ... */
static void put_model(const char *name, const char *header, size_t data)
{
    size_t n = strlen(header);
    unsigned char *bytes = xcalloc(8 + n + data, 1);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data; i++)
        bytes[8 + n + i] = (unsigned char)(i * 7);
    put_file(name, bytes, 8 + n + data);
    free(bytes);
}

static const char small_header[] =
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[4,4],"
    "\"data_offsets\":[24,56]},\"c\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[56,59]}}";

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- json -------------------------------------------------------------------------------------------------------- */

static char *printed(const JsonValue *value, JsonStyle style, size_t *n)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    json_print(f, value, style);
    fclose(f);
    return text;
}

static void check_numbers(const JsonValue *v)
{
    for (; v; v = v->next) {
        double value;
        if (v->type != JSON_INTEGER && v->type != JSON_REAL)
            continue;
        char *text = with_nul(v->text, v->length);
        demand(json_double(v, &value) == 0 && value == strtod(text, NULL));
        free(text);
    }
}

/* What is printed reads back, and then prints the same. */
static void fuzz_json(const unsigned char *bytes, size_t n)
{
    char err[512], *text = exact_copy(bytes, n);
    JsonValue *root = json_parse(text, n, err);
    for (int style = JSON_COMPACT; root && style <= JSON_CANONICAL; style++) {
        size_t n1, n2;
        char *once = printed(root, (JsonStyle)style, &n1);
        JsonValue *again = json_parse(once, n1, err);
        demand(again && again->type == root->type);
        char *twice = printed(again, (JsonStyle)style, &n2);
        demand(n1 == n2 && memcmp(once, twice, n1) == 0);
        free(twice);
        json_free(again);
        free(once);
    }
    check_numbers(root);
    check_numbers(root && root->type >= JSON_ARRAY ? root->child : NULL);
    json_free(root);
    free(text);
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

static void walk_slices(const SafetensorsTensor *t)
{
    static const char *const specs[] = {"", "0", "-1", "::2", "::-1", "..., 0", "1:", ":, 1:2", "0, 0", "-1:0:-3, ..."};
    char err[512];
    unsigned char element[8];
    for (size_t i = 0; i < sizeof specs / sizeof *specs && t->elements <= 1 << 16; i++) {
        Slice s = {0};
        Statistics stats;
        uint64_t bins[5], at;
        if (slice_parse(&s, specs[i], t, err) == 0) {
            demand(s.elements <= t->elements);
            if (statistics_compute(&s, &stats, err) == 0)
                demand(stats.nan + stats.plus_inf + stats.minus_inf <= stats.count);
            statistics_find(&s, 1.0, false, &at, err);
            statistics_histogram(&s, -1, 1, bins, 5, err);
            if (s.elements)
                demand(slice_gather(&s, s.elements - 1, 1, element, err) == 0);
            npy_write(&s, stdout, err);
        }
        slice_free(&s);
    }
}

static void walk_tensors(Checkpoint *c)
{
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        SafetensorsTensor found;
        char number[64];
        demand(safetensors_find_n(&c->st, t->name, t->name_length, &found) == 0 && found.offset == t->offset);
        if (t->elements && dtype_bits(t->dtype) >= 8)
            number_text(t->dtype, safetensors_data(t), number);
        walk_slices(t);
        if (!memchr(t->name, 0, t->name_length)) {
            char *name = with_nul(t->name, t->name_length);
            free(safetensors_load_float(&c->st, name));
            free(name);
        }
        name_matches("*a?.*", t->name, t->name_length);
    }
    print_warnings(&c->st);
    print_summary(c);
    draw_map(c);
    write_file("", &c->st, NULL);
}

/* Opened by mapping or by reading, and all that info tells of it. */
static void fuzz_safetensors(const unsigned char *bytes, size_t n)
{
    static char path[128];
    Checkpoint c;
    char err[512];
    put_file("open.safetensors", bytes, n);
    snprintf(path, sizeof path, "%s", in_folder("open.safetensors"));
    if (checkpoint_open(&c, path, n & 1, err) == 0) {
        walk_tensors(&c);
        checkpoint_close(&c);
    } else {
        demand(strlen(err) > 0);
    }
}

/* An index over the files x.safetensors and y.safetensors. */
static void fuzz_index(const unsigned char *bytes, size_t n)
{
    static bool ready;
    Checkpoint c;
    char err[512];
    if (!ready) {
        put_model("x.safetensors", small_header, 59);
        put_model("y.safetensors", "{\"d\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4);
        ready = true;
    }
    put_file("model.safetensors.index.json", bytes, n);
    if (checkpoint_open(&c, in_folder("model.safetensors.index.json"), false, err) != 0)
        return;
    for (size_t i = 0; i < checkpoint_tensor_count(&c); i++)
        demand(strncmp(checkpoint_tensor(&c, i)->file->path, folder, strlen(folder)) == 0);
    print_summary(&c);
    checkpoint_close(&c);
}

/* First byte: how many of the next ones are sizes of axes; then the slice. */
static void fuzz_slice(const unsigned char *bytes, size_t n)
{
    uint64_t shape[8];
    size_t rank = n ? bytes[0] % 6 : 0;
    char err[512];
    if (n < 1 + rank)
        return;
    SafetensorsTensor t = {
        .name = "a", .name_length = 1, .dtype = DTYPE_U8, .rank = rank, .shape = shape, .elements = 1};
    for (size_t i = 0; i < rank; i++)
        t.elements *= shape[i] = bytes[1 + i] % 9;
    SafetensorsFile file = {.path = (char *)(uintptr_t)"file"};
    t.length = t.elements;
    t.file = &file;
    char *spec = with_nul(bytes + 1 + rank, n - 1 - rank);
    Slice s = {0};
    SliceWalk w = {0};
    if (slice_parse(&s, spec, &t, err) == 0) {
        uint64_t total = 0, first, count;
        demand(slice_walk(&w, &s, 0, err) == 0);
        while (total <= s.elements && slice_next(&w, &first, &count)) {
            demand(count > 0 && first < t.elements && count <= t.elements - first);
            total += count;
        }
        demand(total == s.elements);
        slice_walk_end(&w);
    }
    slice_free(&s);
    free(spec);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Text -> number -> element -> text -> the same element. */
static void fuzz_number(const unsigned char *bytes, size_t n)
{
    char err[512], shown[64], *text = with_nul(bytes, n);
    Number number, again;
    for (Dtype d = 0; number_parse(&number, text, err) == 0 && d < DTYPE_COUNT; d++) {
        unsigned char element[8] = {0}, other[8] = {0};
        if (dtype_bits(d) < 8 || number_write(d, element, &number, err) != 0)
            continue;
        number_text(d, element, shown);
        if (d == DTYPE_C64 || d == DTYPE_BOOL)
            continue; /* 1+0j, true: shown, but not read */
        demand(number_parse(&again, shown, err) == 0 && number_write(d, other, &again, err) == 0);
        Number a = number_read(d, element), b = number_read(d, other);
        demand(memcmp(element, other, 8) == 0 || (isnan(a.value) && isnan(b.value)));
        number_apply(d, NUMBER_SCALE, &number, element, err);
        number_apply(d, NUMBER_ADD, &number, element, err);
    }
    free(text);
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

/* A config that fits the small model's file may load it; any other is refused before memory of its size is asked for.
 */
static void fuzz_config(const unsigned char *bytes, size_t n)
{
    static SafetensorsFile st;
    char err[512], *text = exact_copy(bytes, n);
    Config c = {0};
    if (!st.path) {
        put_model("weights.safetensors", small_header, 59);
        demand(safetensors_open(in_folder("weights.safetensors"), &st) == 0);
    }
    if (config_parse(&c, text, n, "config.json", err) == 0) {
        TransformerWeights w = {.mode = MODE_BF16};
        float scale, *frequencies = c.head_dim < 1 << 16 ? xmalloc((c.head_dim / 2 + 1) * sizeof(float)) : NULL;
        demand(c.n_heads && c.n_kv_heads && c.n_heads % c.n_kv_heads == 0);
        if (frequencies)
            rope_frequencies(&c, frequencies, &scale);
        free(frequencies);
        run_state_bytes(&c, KV_F32, c.max_positions, 512);
        if (weights_load(&st, &c, w.mode, &w, err) == 0)
            weights_free(&w);
    }
    config_free(&c);
    free(text);
}

static void fuzz_generation(const unsigned char *bytes, size_t n)
{
    char err[512], *text = exact_copy(bytes, n);
    GenerationConfig g;
    if (generation_config_parse(&g, text, n, "generation_config.json", err) == 0) {
        SampleOptions o = g.sampling;
        demand(g.n_eos <= 16);
        if (sample_options_check(&o, err) == 0) {
            float logits[8] = {1, 2, 3, -4, 5, 6, 7, 100};
            Sampler s;
            demand(sampler_init(&s, &o, 8, 7, err) == 0);
            for (int i = 0; i < 7; i++)
                sampler_accept(&s, i);
            int id = sampler_next(&s, logits, err);
            demand(id < 7);
            sampler_free(&s);
        }
    }
    free(text);
}

/* ---- tokenizers -------------------------------------------------------------------------------------------------- */

static const char sample_text[] = "Hello, w\xc3\xb6rld  123\n\n<|im_start|>it's e\xcc\x81\xff a\xe4\xb8\xad";
static const Message turns[] = {
    {"system", "be brief", 6, 8}, {"user", "hi <|im_end|>", 4, 13}, {"assistant", "", 9, 0}};

static void use_tokenizer(Tokenizer *t)
{
    IdList ids = {0};
    Text text = {0};
    char err[512];
    for (int added = 0; added < 2; added++)
        if (tokenizer_encode(t, sample_text, sizeof sample_text - 1, added, &ids, err) == 0)
            for (size_t i = 0; i < ids.count; i++)
                demand(ids.items[i] >= 0 && (size_t)ids.items[i] < tokenizer_size(t));
    tokenizer_decode(t, ids.items, ids.count, false, &text);
    if (!tokenizer_chat_problem(t)) {
        tokenizer_default_system(t);
        tokenizer_chat_text(t, turns, 3, true, &text, err);
        tokenizer_chat_ids(t, turns + 1, 2, true, true, &ids, err);
    }
    text_free(&text);
    id_list_free(&ids);
}

static void open_tokenizer_file(const char *name)
{
    char err[512];
    Tokenizer *t = tokenizer_open(in_folder(name), err);
    if (!t)
        return;
    use_tokenizer(t);
    tokenizer_close(t);
}

static void fuzz_tokenizer(const unsigned char *bytes, size_t n)
{
    put_file("tokenizer.json", bytes, n);
    open_tokenizer_file("tokenizer.json");
}

/* vocab.json, then a zero byte, then merges.txt. */
static void fuzz_vocab(const unsigned char *bytes, size_t n)
{
    const unsigned char *zero = memchr(bytes, 0, n);
    size_t vocab = zero ? (size_t)(zero - bytes) : n;
    mkdir(in_folder("vocab"), 0700);
    put_file("vocab/vocab.json", bytes, vocab);
    put_file("vocab/merges.txt", zero ? zero + 1 : bytes, zero ? n - vocab - 1 : 0);
    open_tokenizer_file("vocab");
}

static const char tiny_tokenizer[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<|im_start|>\",\"special\":true},"
    "{\"id\":4,\"content\":\"<|im_end|>\",\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":"
    "{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

/* A chat template, beside a small tokenizer. */
static void fuzz_template(const unsigned char *bytes, size_t n)
{
    mkdir(in_folder("chat"), 0700);
    put_file("chat/tokenizer.json", tiny_tokenizer, sizeof tiny_tokenizer - 1);
    FILE *f = fopen(in_folder("chat/tokenizer_config.json"), "w");
    fputs("{\"chat_template\":", f);
    json_write_string(f, (const char *)bytes, n);
    fputs("}", f);
    fclose(f);
    open_tokenizer_file("chat");
}

static Tokenizer *demo_tokenizer(void)
{
    static Tokenizer *t;
    char err[512];
    if (!t)
        t = tokenizer_open("tests/demo", err);
    demand(t);
    return t;
}

/* Any bytes: UTF-8, NFC, and plain text -> ids -> the same text. */
static void fuzz_text(const unsigned char *bytes, size_t n)
{
    Tokenizer *t = demo_tokenizer();
    IdList ids = {0};
    Text valid = {0}, back = {0};
    char err[512], *text = exact_copy(bytes, n);
    size_t n1, n2, prefix = text_complete_prefix(text, n);
    demand(prefix <= n && n - prefix <= 3 && text_append_replacing(&valid, text, n) == 0);
    const char *v = valid.length ? valid.bytes : "";
    char *once = unicode_nfc(v, valid.length, &n1), *twice = unicode_nfc(once, n1, &n2);
    demand(n1 == n2 && memcmp(once, twice, n1) == 0);
    if (unicode_is_nfc(v, valid.length))
        demand(n1 == valid.length && memcmp(once, v, n1) == 0);
    demand(tokenizer_encode(t, text, n, false, &ids, err) == 0);
    demand(tokenizer_decode(t, ids.items, ids.count, false, &back) == 0);
    demand(back.length == n1 && memcmp(n1 ? back.bytes : "", once, n1) == 0);
    ids.count = 0;
    demand(tokenizer_encode(t, text, n, true, &ids, err) == 0);
    for (size_t i = 0; i < ids.count; i++)
        demand(ids.items[i] >= 0 && (size_t)ids.items[i] < tokenizer_size(t));
    free(escaped(text, n));
    free(once);
    free(twice);
    id_list_free(&ids);
    text_free(&valid);
    text_free(&back);
    free(text);
}

/* ---- requests and options ---------------------------------------------------------------------------------------- */

/* What `run tokenize --jsonl` reads. */
static void fuzz_jsonl(const unsigned char *bytes, size_t n)
{
    put_file("requests", bytes, n);
    int fd = open(in_folder("requests"), O_RDONLY);
    demand(fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    close(fd);
    answer_lines(demo_tokenizer());
}

/* Arguments are parted by zero bytes. */
static void fuzz_options(const unsigned char *bytes, size_t n)
{
    static struct {
        bool flag;
        const char *text;
        size_t size, count;
        uint64_t u64, bytes;
        double number;
        Prompt prompt;
        SamplingArguments sampling;
    } got;
    static const Option options[] = {
        {'a', "flag", NULL, OPTION_FLAG, &got.flag, "h"},
        {'x', "text", "T", OPTION_TEXT, &got.text, "h"},
        {0, "size", "N", OPTION_SIZE, &got.size, "h"},
        {'n', "count", "N", OPTION_COUNT, &got.count, "h"},
        {0, "u64", "N", OPTION_U64, &got.u64, "h"},
        {'b', "bytes", "N", OPTION_BYTES, &got.bytes, "h"},
        {0, "number", "N", OPTION_NUMBER, &got.number, "h"},
        PROMPT_OPTIONS(got.prompt),
        SAMPLING_OPTIONS(got.sampling),
        {0},
    };
    static char *text, *argv[34];
    static IdList ids;
    int argc = 1;
    text = with_nul(bytes, n);
    memset(&got, 0, sizeof got);
    argv[0] = text;
    for (size_t i = 0; i <= n && argc < 32; i += strlen(text + i) + 1)
        argv[argc++] = text + i;
    argv[argc] = NULL;
    exit_is_caught = true;
    if (__lsan_disable)
        __lsan_disable(); /* what exit() leaves behind is no leak */
    if (!setjmp(at_exit)) {
        this_command = &generate_command;
        int count = options_parse(argc, argv, options, NULL, "run generate\n\nmore");
        demand(count < argc);
        demand(!got.text || (got.text >= text && got.text <= text + n));
        for (int i = 1; i <= count; i++)
            demand(input_unescape(argv[i], strlen(argv[i])) <= n);
        if (got.prompt.ids)
            ids = input_ids(got.prompt.ids);
    }
    if (__lsan_enable)
        __lsan_enable();
    exit_is_caught = false;
    id_list_free(&ids);
    free(text);
    got.text = NULL;
}

/* ---- changes on disk --------------------------------------------------------------------------------------------- */

/* A journal beside a small file. First byte: bit 0, its hashes are made right; bit 1, the file's too. */
static void fuzz_journal(const unsigned char *bytes, size_t n)
{
    enum { HEAD = 144, STEP = 16, SIZE = 32, HEADER_HASH = 40, RECORDS = 72, RECORDS_HASH = 80, HASH = 112 };
    Checkpoint c;
    Sha256 s;
    char err[512];
    struct stat info;
    Undone undone;
    if (n < 1)
        return;
    put_model("edited.safetensors", small_header, 59);
    char *copy = exact_copy(bytes + 1, n - 1);
    unsigned char *journal = (unsigned char *)copy;
    if (n - 1 >= HEAD && bytes[0] & 2) {
        uint64_t size = 8 + sizeof small_header - 1 + 59, length = sizeof small_header - 1;
        unsigned char first[8] = {(unsigned char)length, (unsigned char)(length >> 8)};
        memcpy(journal, "RUNUNDO1", 8);
        for (int i = 0; i < 8; i++)
            journal[SIZE + i] = (unsigned char)(size >> 8 * i);
        sha256_init(&s);
        sha256_update(&s, first, 8);
        sha256_update(&s, small_header, sizeof small_header - 1);
        sha256_final(&s, journal + HEADER_HASH);
    }
    if (n - 1 >= HEAD && bytes[0] & 1) {
        uint64_t length = n - 1 - HEAD;
        for (int i = 0; i < 8; i++)
            journal[RECORDS + i] = (unsigned char)(length >> 8 * i);
        sha256_init(&s);
        sha256_update(&s, journal + HEAD, length);
        sha256_final(&s, journal + RECORDS_HASH);
        sha256_init(&s);
        sha256_update(&s, journal + STEP, HASH - STEP);
        sha256_final(&s, journal + HASH);
    }
    put_file("edited.safetensors.undo", journal, n - 1);
    if (checkpoint_open(&c, in_folder("edited.safetensors"), false, err) == 0) {
        edit_pending(&c, err);
        if (undo_last(&c, &undone, err) == 0)
            demand(undone.files == 1);
        checkpoint_close(&c);
    }
    demand(stat(in_folder("edited.safetensors"), &info) == 0 && info.st_size == 8 + sizeof small_header - 1 + 59);
    free(copy);
}

/* A patch, and a mask, for a small file. */
static void fuzz_patch(const unsigned char *bytes, size_t n)
{
    static bool ready;
    Checkpoint c, patch;
    char err[512];
    uint64_t zeroed = 0;
    if (!ready)
        put_model("base.safetensors", small_header, 59);
    ready = true;
    put_file("patch.safetensors", bytes, n);
    if (checkpoint_open(&patch, in_folder("patch.safetensors"), true, err) != 0)
        return;
    demand(checkpoint_open(&c, in_folder("base.safetensors"), false, err) == 0);
    Edit e = {0}, mask = {0};
    patch_apply(&e, &c, &patch, NULL, NULL, err);
    edit_end(&e);
    mask_apply(&mask, &c, &patch, &zeroed, err);
    edit_end(&mask);
    checkpoint_close(&c);
    checkpoint_close(&patch);
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(const unsigned char *bytes, size_t n);
    bool has_header; /* a .safetensors file: mutations keep its lengths right, mostly */
} entries[] = {
    {"json", fuzz_json, false},
    {"safetensors", fuzz_safetensors, true},
    {"index", fuzz_index, false},
    {"slice", fuzz_slice, false},
    {"number", fuzz_number, false},
    {"config", fuzz_config, false},
    {"generation", fuzz_generation, false},
    {"tokenizer", fuzz_tokenizer, false},
    {"vocab", fuzz_vocab, false},
    {"template", fuzz_template, false},
    {"text", fuzz_text, false},
    {"jsonl", fuzz_jsonl, false},
    {"options", fuzz_options, false},
    {"journal", fuzz_journal, false},
    {"patch", fuzz_patch, true},
};
#define ENTRIES (sizeof entries / sizeof *entries)
static size_t entry = ENTRIES;

/* As many bytes of data as the header's largest end asks for, if it asks for few. */
static size_t data_wanted(const unsigned char *header, size_t n, size_t otherwise)
{
    char err[512];
    uint64_t most = 0, end;
    JsonValue *root = json_parse((const char *)header, n, err);
    for (const JsonValue *v = root && root->type == JSON_OBJECT ? root->child : NULL; v; v = v->next) {
        const JsonValue *offsets = json_get(v, "data_offsets");
        const JsonValue *last = offsets && offsets->type == JSON_ARRAY && offsets->child ? offsets->child->next : NULL;
        if (json_u64(last, &end) == 0 && end > most)
            most = end;
    }
    bool wanted = root && most <= MOST / 2;
    json_free(root);
    return wanted ? (size_t)most : otherwise;
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    uint64_t length = size >= 8 ? read_u64_le(data) : 0;
    if (!entries[entry].has_header || seed % 4 == 0 || size < 8 || length > size - 8 || max < 16)
        return LLVMFuzzerMutate(data, size, max);
    size_t rest = size - 8 - (size_t)length;
    unsigned char *data_part = xmalloc(rest + 1);
    memcpy(data_part, data + 8 + length, rest);
    size_t n = LLVMFuzzerMutate(data + 8, (size_t)length, max - 8);
    for (int i = 0; i < 8; i++)
        data[i] = (unsigned char)((uint64_t)n >> 8 * i);
    size_t wanted = seed % 4 == 1 ? rest : data_wanted(data + 8, n, rest);
    wanted = wanted < max - 8 - n ? wanted : max - 8 - n;
    for (size_t i = 0; i < wanted; i++)
        data[8 + n + i] = (unsigned char)(i < rest ? data_part[i] : seed >> (i & 15));
    free(data_part);
    return 8 + n + wanted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    entries[entry].run(data, size);
    return 0;
}

/* Takes the entry's name out of the arguments. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *inherited = getenv("FUZZ_ENTRY"); /* -merge=1 starts this program again, without the entry */
    const char *name = inherited ? inherited : *argc > 1 ? (*argv)[1] : "";
    messages = stderr;
    for (entry = 0; entry < ENTRIES && strcmp(entries[entry].name, name) != 0;)
        entry++;
    if (entry == ENTRIES) {
        fprintf(messages, "usage: fuzz ENTRY [-max_total_time=S] [-runs=N] [-seed=N] CORPUS..; entries:");
        for (size_t i = 0; i < ENTRIES; i++)
            fprintf(messages, " %s", entries[i].name);
        fprintf(messages, "\n");
        __real_exit(2);
    }
    if (!inherited) {
        (*argv)[1] = (*argv)[0];
        (*argv)++;
        (*argc)--;
        setenv("FUZZ_ENTRY", name, 1);
    }
    if (!mkdtemp(folder) && !mkdtemp(memcpy(folder, "/tmp/run-fuzz-XXXXXX", 21))) {
        perror("a folder to work in");
        __real_exit(2);
    }
    atexit(remove_folder);
    stdout = stderr = fopen("/dev/null", "w"); /* what the program says of a million mistakes */
    return 0;
}

/* ---- a mutation loop of our own ---------------------------------------------------------------------------------- */

#ifdef PLAIN
typedef struct {
    unsigned char *bytes;
    size_t n;
} Seed;
static Seed *seeds;
static size_t n_seeds;
static uint64_t random_state = 1;

static uint64_t chance(uint64_t below) /* xorshift64* */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return below ? random_state * 0x2545f4914f6cdd1du % below : 0;
}

static int add_seed(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)where;
    FILE *f = type == FTW_F && info->st_size <= 1 << 20 ? fopen(path, "rb") : NULL;
    if (!f)
        return 0;
    seeds = xrealloc(seeds, (n_seeds + 1) * sizeof *seeds);
    Seed *s = &seeds[n_seeds++];
    s->bytes = xmalloc((size_t)info->st_size + 1);
    s->n = fread(s->bytes, 1, (size_t)info->st_size, f);
    fclose(f);
    return 0;
}

/* n bytes at `at` give way to m bytes. */
static size_t replace(uint8_t *data, size_t size, size_t max, size_t at, size_t n, const void *with, size_t m)
{
    if (size - n + m > max)
        return size;
    memmove(data + at + m, data + at + n, size - at - n);
    memcpy(data + at, with, m);
    return size - n + m;
}

/* A few changes: bits, bytes, words that parsers know, pieces that are lost, doubled, or come from another seed. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max)
{
    static const char *const words[] = {"0",
                                        "-1",
                                        "1e999",
                                        "18446744073709551615",
                                        "18446744073709551616",
                                        "4294967296",
                                        "9223372036854775808",
                                        "\"",
                                        "\\u0000",
                                        "\\ud800",
                                        "{}",
                                        "[]",
                                        "null",
                                        "true",
                                        "\xff",
                                        "\xe2\x80\xa8",
                                        "e\xcc\x81",
                                        ",",
                                        ":",
                                        "]",
                                        "}",
                                        "{%",
                                        "%}",
                                        "{{",
                                        "}}",
                                        "--",
                                        "=",
                                        "::",
                                        "...",
                                        "\n",
                                        "NaN",
                                        "../",
                                        "9999999999",
                                        "[[[[[[[[",
                                        "0.1",
                                        "<|im_end|>"};
    static uint8_t piece[MOST];
    for (uint64_t i = 1 + chance(4); i > 0; i--) {
        size_t at = (size_t)chance(size + 1), n = (size_t)chance((size - at < 32 ? size - at : 32) + 1);
        const char *word = words[chance(sizeof words / sizeof *words)];
        const Seed *s = n_seeds ? &seeds[chance(n_seeds)] : NULL;
        switch (chance(7)) {
        case 0:
            if (at < size)
                data[at] ^= (uint8_t)(1u << chance(8));
            break;
        case 1:
            if (at < size)
                data[at] = (uint8_t)chance(256);
            break;
        case 2:
            size = replace(data, size, max, at, chance(2) ? n : 0, word, strlen(word));
            break;
        case 3:
            size = replace(data, size, max, at, n, "", 0);
            break;
        case 4:
            memcpy(piece, data + at, n);
            size = replace(data, size, max, (size_t)chance(size + 1), 0, piece, n);
            break;
        case 5:
            if (s && s->n) {
                size_t from = (size_t)chance(s->n), m = (size_t)chance((s->n - from < 64 ? s->n - from : 64) + 1);
                size = replace(data, size, max, at, n, s->bytes + from, m);
            }
            break;
        case 6:
            if (at < size)
                data[at] = (uint8_t)(data[at] + (chance(2) ? 1 : -1));
            break;
        }
    }
    return size;
}

static uint64_t option(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, strlen(name)) == 0)
            return strtoull(argv[i] + strlen(name), NULL, 10);
    return otherwise;
}

int main(int argc, char **argv)
{
    LLVMFuzzerInitialize(&argc, &argv);
    uint64_t seconds = option(argc, argv, "-max_total_time=", 0), runs = option(argc, argv, "-runs=", UINT64_MAX);
    random_state = option(argc, argv, "-seed=", 1) * 0x9e3779b97f4a7c15u + 1;
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-')
            nftw(argv[i], add_seed, 16, FTW_PHYS);
    uint64_t done = 0;
    uint8_t *data = xmalloc(MOST);
    for (size_t i = 0; i < n_seeds && done < runs; i++, done++)
        LLVMFuzzerTestOneInput(seeds[i].bytes, seeds[i].n);
    for (double end = seconds_now() + (double)seconds; done < runs && (!seconds || seconds_now() < end); done++) {
        const Seed *s = n_seeds ? &seeds[chance(n_seeds)] : &(Seed){NULL, 0};
        size_t n = s->n < MOST ? s->n : MOST;
        if (n)
            memcpy(data, s->bytes, n);
        n = LLVMFuzzerCustomMutator(data, n, MOST, (unsigned)chance(UINT32_MAX));
        LLVMFuzzerTestOneInput(data, n);
    }
    fprintf(messages, "stat::number_of_executed_units: %" PRIu64 "\n", done);
    free(data);
    for (size_t i = 0; i < n_seeds; i++)
        free(seeds[i].bytes);
    free(seeds);
    return 0;
}
#endif
