/* run: opens a Qwen2.5 checkpoint and generates text on a CPU. The table of commands, signals, main().
 *
 * Exit codes: 0 success, 1 a bad file or a failed run, 2 wrong usage, 130 after Ctrl-C. */
#include "base/download.h"
#include "commands/commands.h"
#include "commands/options.h"
#include "commands/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN_VERSION "1.0.0"

const Command *this_command;

static const Command commands[] = {
    {"info", "[MODEL]", 0, 1, false, "show what is in a checkpoint: map, tensors, numbers", cmd_info},
    {"generate", "[PROMPT]", 0, 1, true, "continue a text", cmd_generate},
    {"chat", "", 0, 0, true, "talk with a model, in the terminal or line by line", cmd_chat},
    {"tokenize", "[TEXT]", 0, 1, false, "turn text into token ids and back", cmd_tokenize},
    {"logits", "[PROMPT]", 0, 1, true, "list the most likely next tokens", cmd_logits},
    {"explain", "[PROMPT]", 0, 1, true, "follow the last token through the network", cmd_explain},
    {"perplexity", "[FILE]", 0, 1, true, "measure how well the model predicts a text", cmd_perplexity},
    {"diff", "A B", 2, 2, false, "compare two checkpoints", cmd_diff},
    {"edit", "FILE", 1, 1, false, "change numbers in place, with undo", cmd_edit},
    {"split", "MODEL DIR", 2, 2, false, "write a checkpoint as shards with an index", cmd_split},
    {"merge", "MODEL FILE", 2, 2, false, "write shards as one file", cmd_merge},
    {"json", "[FILE]", 0, 1, false, "check and print JSON", cmd_json},
    {"hash", "[MODEL]", 0, 1, false, "print or verify SHA-256 of files and tensors", cmd_hash},
    {"bench", "", 0, 0, true, "measure speed and memory on this machine", cmd_bench},
    {0},
};

/* Reading a mapped file raises SIGBUS when it became shorter, or its disk failed, in several threads at once. The first
 * one says so, with one write. */
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
    ssize_t written = write(STDERR_FILENO, sentence, length);
    (void)written; /* there is nobody else to tell */
    _exit(exit_failed);
}

/* If the program was started with descriptor 0, 1 or 2 closed, a file opened later would get that number. /dev/null
 * takes it instead, opened for the wrong direction, so that reading or writing it is still an error. */
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
    fprintf(out,
            "\nrun COMMAND --help lists its options; run --version prints the version\n\n"
            "MODEL, or -m MODEL for commands that run one: a folder, a .safetensors file, an\n"
            "index.json, or a hub id in the local Hugging Face cache. Without it they use the\n"
            "model in the current folder, else a tiny demo model. To fetch one, or to fill\n"
            "that cache: %s [--cache] [ORG/NAME]\n\n"
            "examples:\n"
            "  run generate \"Once upon a time\" -n 50\n"
            "  run chat -w bf16                  # the same text as f32, about twice as fast\n"
            "  run info\n\n"
            "exit codes: 0 success, 1 a bad file or a failed run, 2 wrong usage, 130 after\n"
            "Ctrl-C; of diff: 0 the same, 1 different, 2 trouble\n"
            "environment: RUN_WEIGHTS (default of -w), HF_HUB_CACHE, HF_HOME (hub ids),\n"
            "NO_COLOR, RUN_ISA (kernels)\n",
            download_command());
}

static const Command *find_command(const char *name)
{
    const Command *best = NULL;
    Nearest nearest = nearest_to(name, strlen(name));
    struct stat st;
    for (const Command *c = commands; c->name; c++)
        if (nearest_offer(&nearest, c->name, strlen(c->name)))
            best = c;
    if (nearest.distance == 0)
        return best;
    const char *other = nearest_other_command(&nearest);
    if (other)
        usage_error("unknown command '%.100s': %s", name, other);
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
    if (!strcmp(argv[1], "-v") || !strcmp(argv[1], "-V"))
        usage_error("unknown option '%s': run --version prints the version", argv[1]);
    if (argv[1][0] == '-')
        usage_error("options follow the command, but '%.100s' comes first", argv[1]);
    this_command = find_command(argv[help ? 2 : 1]);
    if (help)
        return this_command->main(2, (char *[]){argv[2], "--help", NULL});
    return this_command->main(argc - 1, argv + 1);
}
