/* run: opens a Qwen2.5 checkpoint and generates text on a CPU. This file is its front end: the table of commands, and
 * the two that show the whole way, `info` (what lies in the file) and `generate` (from the bytes to the next token).
 * The others are in commands/.
 *
 * Exit codes: 0 success, 1 a bad file or a failed run, 2 wrong usage, 130 after Ctrl-C. */
#include "commands/common.h"
#include "commands/slice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- info -------------------------------------------------------------------------------------------------------- */

/* Those that match, a heading before the tensors of each shard. Returns how many there are. */
static size_t print_tensors(const Checkpoint *c, const char *find)
{
    const SafetensorsFile *file = NULL;
    size_t printed = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const SafetensorsTensor *t = checkpoint_tensor(c, i);
        if (!name_matches(find, t->name, t->name_length))
            continue;
        if (c->st.n_shards && t->file != file) {
            printf("%sin ", printed ? "\n" : "");
            print_escaped(stdout, t->file->path, strlen(t->file->path));
            printf(":\n");
        }
        file = t->file;
        print_tensor(t);
        printed++;
    }
    return printed;
}

int cmd_info(int argc, char **argv)
{
    const char *find = NULL;
    DataArguments data = {.at = NOWHERE};
    const Option options[] = {
        {'m', "model", "PATH", OPTION_TEXT, &common.model, "the same as MODEL"},
        {0, "find", "GLOB", OPTION_TEXT, &find, "only tensors whose name matches; * is any text, ? any character"},
        DATA_OPTIONS(data),
        {'t', "threads", "N", OPTION_COUNT, &common.threads, "of --stats; default: the cores this process may use"},
        {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
        {0},
    };
    int count = options_parse(argc, argv, options, false, NULL,
                              "run info model.safetensors\n"
                              "run info .                        # a model folder: also what memory it needs\n"
                              "run info model.safetensors --find '*.0.*' --stats\n"
                              "run info model.safetensors --tensor model.norm.weight --slice 0:8\n"
                              "run info model.safetensors --json\n");
    arguments_at_most(count, 1, argv);
    if (count && common.model)
        usage_error("MODEL and --model: give one of them");
    Checkpoint c;
    open_checkpoint(&c, count ? argv[1] : common.model);
    size_t found = 0;
    for (size_t i = 0; i < checkpoint_file_count(&c) && !common.quiet; i++)
        info_warnings(checkpoint_file(&c, i));
    for (size_t i = 0; i < checkpoint_tensor_count(&c); i++)
        found += name_matches(find, checkpoint_tensor(&c, i)->name, checkpoint_tensor(&c, i)->name_length);
    if (find && !found)
        die(EXIT_FAILED, "%s: no tensor's name matches '%s'", c.argument, find);
    if (info_data(&c, &data, find)) {
        /* the numbers that were asked for, and nothing else */
    } else if (common.json) {
        info_json(&c, find);
    } else if (find) {
        print_tensors(&c, find);
    } else {
        info_summary(&c);
        if (c.from_directory)
            info_model(&c);
        info_map(&c);
        putchar('\n');
        print_tensors(&c, NULL);
    }
    checkpoint_close(&c);
    return finish(EXIT_OK);
}

/* ---- generate ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PromptArguments from;
    const char *prompt, *system;
    TextList stops;
    SamplingArguments sampling;
    double max_seconds;
    size_t max_tokens;
    bool ignore_eos, chat, no_echo;
} GenerateArguments;

static GenerateArguments parse_generate(int argc, char **argv)
{
    static GenerateArguments a = {.max_tokens = SIZE_MAX};
    a.sampling = sampling_arguments();
    const Option options[] = {
        {'n', "max-tokens", "N", OPTION_SIZE, &a.max_tokens,
         "most new tokens (default: until an end token or a full context)"},
        PROMPT_OPTIONS(a.from),
        SAMPLING_OPTIONS(a.sampling),
        {0, "stop", "TEXT", OPTION_LIST, &a.stops, "end before TEXT; may be given several times"},
        {0, "ignore-eos", NULL, OPTION_FLAG, &a.ignore_eos, "go on after end tokens"},
        {0, "chat", NULL, OPTION_FLAG, &a.chat, "the prompt is a user's message: wrap it in the chat template"},
        {0, "system", "TEXT", OPTION_TEXT, &a.system, "the system message (implies --chat)"},
        {0, "no-echo", NULL, OPTION_FLAG, &a.no_echo, "print the continuation without the prompt"},
        {0, "max-seconds", "S", OPTION_NUMBER, &a.max_seconds, "end after S seconds (0: no limit)"},
        {0},
    };
    int count = options_parse(argc, argv, options, true, NULL,
                              "run generate \"Once upon a time\"\n"
                              "run generate -m Qwen/Qwen2.5-0.5B-Instruct --chat \"Why is the sky blue?\"\n"
                              "run generate -n 50 --temperature 0.8 --seed 7 -f prompt.txt\n"
                              "echo -n \"1, 2, 3,\" | run generate --greedy --stop . --json\n");
    arguments_at_most(count, 1, argv);
    a.prompt = count ? argv[1] : NULL;
    a.chat = a.chat || a.system;
    for (size_t i = 0; i < a.stops.count; i++)
        if (!*a.stops.items[i])
            usage_error("--stop: an empty text");
    if (a.from.ids && a.chat)
        usage_error("--ids and --chat: give one of them");
    return a;
}

static IdList chat_prompt(Session *s, const GenerateArguments *a, const char *text, size_t length)
{
    Message messages[2];
    size_t n = 0;
    IdList ids = {0};
    char err[512];
    const char *problem = tokenizer_chat_problem(s->tokenizer);
    if (problem)
        die(EXIT_FAILED, "%s", problem);
    if (a->system)
        messages[n++] = (Message){"system", a->system, 6, strlen(a->system)};
    messages[n++] = (Message){"user", text, 4, length};
    if (tokenizer_chat_ids(s->tokenizer, messages, n, true, !a->system, &ids, err))
        die(EXIT_FAILED, "%s", err);
    check_ids(s, ids.items, ids.count);
    return ids;
}

/* Where text goes as it comes. */
typedef struct {
    bool ends_line, silent;
} Output;

static int show_text(void *context, const char *bytes, size_t length)
{
    Output *out = context;
    if (out->silent || !length)
        return 0;
    progress_end();
    print_text(stdout, bytes, length);
    out->ends_line = bytes[length - 1] == '\n';
    return fflush(stdout) ? -1 : 0;
}

static void show_prefill(void *context, size_t done, size_t total)
{
    (void)context;
    progress("reading the prompt", done, total);
    if (done == total)
        progress_end();
}

static void echo_prompt(const Session *s, const char *text, size_t length, const IdList *ids, Output *out)
{
    Text shown = {0};
    if (text ? text_append_replacing(&shown, text, length)
             : tokenizer_decode(s->tokenizer, ids->items, ids->count, false, &shown))
        die(EXIT_FAILED, "out of memory");
    show_text(out, shown.bytes, shown.length);
    text_free(&shown);
}

/* Without a tokenizer the answer is ids. */
static void print_ids(const IdList *prompt, const IdList *ids, bool echo)
{
    const char *between = "";
    for (size_t i = 0; echo && i < prompt->count; i++, between = ",")
        printf("%s%d", between, prompt->items[i]);
    for (size_t i = 0; i < ids->count; i++, between = ",")
        printf("%s%d", between, ids->items[i]);
    putchar('\n');
}

int cmd_generate(int argc, char **argv)
{
    GenerateArguments a = parse_generate(argc, argv);
    Session s;
    Generated g = {0};
    size_t length;
    check_sampling(&a.sampling);
    char err[512], *text = prompt_text(&a.from, a.prompt, &length);

    session_open(&s, !a.from.ids, false);
    Choosing how = choose_sampling(&s, &a.sampling, a.chat);
    if (a.stops.count && !s.tokenizer)
        die(EXIT_FAILED, "--stop needs a tokenizer, and there is none in %s", s.checkpoint.directory);

    bool as_text = s.tokenizer && !common.json, echo = as_text && !a.no_echo && !a.chat;
    Output out = {.silent = !as_text};
    IdList prompt = a.chat ? chat_prompt(&s, &a, text, length) : session_prompt(&s, text, length, a.from.ids);
    if (echo)
        echo_prompt(&s, text, length, &prompt, &out);
    free(text);

    Sampler sampler = open_sampler(&s, &how.sampling);
    GenerateOptions options = {.max_tokens = a.max_tokens,
                               .max_seconds = a.max_seconds,
                               .stops = a.stops.items,
                               .n_stops = a.stops.count,
                               .eos_ids = how.eos,
                               .n_eos = how.n_eos,
                               .ignore_eos = a.ignore_eos,
                               .interrupted = &interrupted,
                               .on_text = show_text,
                               .on_prefill = show_prefill,
                               .context = &out};
    catch_interrupts();
    end_within(1); /* a block of a long prompt can take longer */
    if (generate(&s.model, &s.state, &sampler, s.tokenizer, prompt.items, prompt.count, &options, &g, err)) {
        if (as_text && !out.ends_line)
            putchar('\n');
        fflush(stdout); /* the error starts a line of its own */
        char where[64];
        int last = g.ids.count ? g.ids.items[g.ids.count - 1] : prompt.items[prompt.count - 1];
        if (find_not_finite(&s, last, where))
            die(EXIT_FAILED, "position %zu: %s; NaN or infinity come first from %s", s.state.pos - 1, err, where);
        die(EXIT_FAILED, "position %zu: %s", s.state.pos ? s.state.pos - 1 : 0, err);
    }
    end_within(0);
    progress_end();
    session_check(&s);
    if (common.json)
        write_generated_json(&s, &g, &prompt, how.sampling.seed);
    else if (!s.tokenizer)
        print_ids(&prompt, &g.ids, !a.no_echo);
    else if (!out.ends_line)
        putchar('\n');
    int code = finish(interrupted ? EXIT_INTERRUPTED : EXIT_OK);
    if (!common.json)
        print_statistics(&s, &g, prompt.count, &how.sampling);

    generated_free(&g);
    id_list_free(&prompt);
    sampler_free(&sampler);
    session_close(&s);
    return code;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

const Command commands[] = {
    {"info", "[MODEL]", "what is in a checkpoint: sizes, map, tensors, numbers", cmd_info},
    {"generate", "[PROMPT]", "continue a text", cmd_generate},
    {"chat", "", "a conversation, in the terminal or line by line", cmd_chat},
    {"tokenize", "[TEXT]", "text to token ids and back", cmd_tokenize},
    {"logits", "[PROMPT]", "the likeliest next tokens", cmd_logits},
    {"explain", "[PROMPT]", "follow the last token through the network", cmd_explain},
    {"perplexity", "[FILE]", "how well the model expects a text", cmd_perplexity},
    {"diff", "A B", "compare two checkpoints", cmd_diff},
    {"edit", "FILE", "change values in place, with undo", cmd_edit},
    {"split", "MODEL DIR", "write a checkpoint as shards with an index", cmd_split},
    {"merge", "MODEL FILE", "write shards as one file", cmd_merge},
    {"json", "[FILE]", "check and print JSON", cmd_json},
    {"hash", "MODEL", "SHA-256 of files and tensors", cmd_hash},
    {"bench", "", "speed and memory on this machine", cmd_bench},
    {0},
};

/* A mapped file became shorter, or its disk failed: reading it raises SIGBUS, in several threads at once. The first of
 * them says so, with one write. */
static void on_bus_error(int signal_number)
{
    static const char before[] = "\nrun: ", after[] = ": the file changed or could not be read while it was in use\n";
    static atomic_flag told = ATOMIC_FLAG_INIT;
    static char sentence[sizeof before + sizeof mapped_name + sizeof after];
    (void)signal_number;
    while (atomic_flag_test_and_set(&told))
        pause();
    emergency_cleanup();
    size_t name = strlen(mapped_name), length = sizeof before - 1 + name + sizeof after - 1;
    memcpy(sentence, before, sizeof before - 1);
    memcpy(sentence + sizeof before - 1, mapped_name, name);
    memcpy(sentence + sizeof before - 1 + name, after, sizeof after - 1);
    if (write(STDERR_FILENO, sentence, length) < 0)
        _exit(exit_code(EXIT_FAILED));
    _exit(exit_code(EXIT_FAILED));
}

/* Started with a closed 0, 1 or 2, a file opened later would get that number. /dev/null takes it, opened the wrong way
 * round, so that reading or writing still fails and is told. */
static void occupy_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            _exit(EXIT_FAILED);
}

static void print_commands(FILE *out)
{
    fprintf(out, "run " RUN_VERSION
                 ": Qwen2.5 checkpoints, inspected and run on a CPU\n\nusage: run COMMAND [options] [arguments]\n\n");
    for (const Command *c = commands; c->name; c++)
        fprintf(out, "  %-11s %-11s %s\n", c->name, c->arguments, c->summary);
    fprintf(out, "\nrun COMMAND --help tells more; run --version\n\n"
                 "examples:\n  run generate \"Once upon a time\"\n  run info model.safetensors\n\n"
                 "exit codes: 0 success, 1 a bad file or a failed run, 2 wrong usage, 130 after\n"
                 "Ctrl-C; of diff: 0 the same, 1 different, 2 trouble\n"
                 "environment: HF_HUB_CACHE, HF_HOME (hub ids), NO_COLOR, RUN_ISA (kernels)\n");
}

static const Command *find_command(const char *name)
{
    const Command *best = NULL;
    size_t least = SIZE_MAX;
    struct stat st;
    for (const Command *c = commands; c->name; c++) {
        size_t d = edit_distance(name, strlen(name), c->name, strlen(c->name));
        if (!d)
            return c;
        if (d < least && nearly(strlen(name), d)) {
            least = d;
            best = c;
        }
    }
    if (best)
        usage_error("unknown command '%.100s': did you mean %s?", name, best->name);
    if (!stat(name, &st))
        usage_error("unknown command '%.100s': did you mean run info %.100s?", name, name);
    usage_error("unknown command '%.100s'", name);
}

int main(int argc, char **argv)
{
    struct sigaction bus = {.sa_handler = on_bus_error};
    occupy_standard_files();
    exit_on_interrupt();
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL);
    if (argc < 2) {
        print_commands(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("run " RUN_VERSION);
        return finish(EXIT_OK);
    }
    bool help = !strcmp(argv[1], "help");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || (help && argc == 2)) {
        print_commands(stdout);
        return finish(EXIT_OK);
    }
    if (argv[1][0] == '-')
        usage_error("'%.100s' comes before the command: run COMMAND [options]", argv[1]);
    const Command *command = find_command(argv[help ? 2 : 1]);
    command_name = command->name;
    if (help)
        return command->main(2, (char *[]){argv[2], "--help", NULL});
    return command->main(argc - 1, argv + 1);
}
