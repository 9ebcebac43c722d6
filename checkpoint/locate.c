/* A model argument means, in this order,
 *     a file or folder       whatever has that name
 *     a hub id               "Qwen/Qwen2.5-0.5B-Instruct": in the local Hugging Face cache, which is only read:
 *                            models--Qwen--Qwen2.5-0.5B-Instruct/refs/main names a folder of .../snapshots
 */
#include "checkpoint/locate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/download.h"
#include "base/file.h"

bool locate_has_weights(const char *folder)
{
    return file_exists_in(folder, WEIGHTS_NAME) || file_exists_in(folder, WEIGHTS_INDEX_NAME);
}

/* ---- what an argument means -------------------------------------------------------------------------------------- */

/* Pass on a path that was just allocated; NULL becomes an error. */
static char *allocated(char *path, char err[512])
{
    if (!path)
        fail(err, "out of memory");
    return path;
}

/* The folder of the cache, fresh; NULL if no variable tells where it is. A leading ~ stands for the home folder. */
static char *hub_cache(void)
{
    static const struct {
        const char *variable, *below;
    } places[] = {
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"},
    };
    const char *home = getenv("HOME");
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value)
            continue;
        bool at_home = home && *home && value[0] == '~' && (value[1] == '/' || !value[1]);
        char *path;
        int length = asprintf(&path, "%s%s%s", at_home ? home : "", at_home ? value + 1 : value, places[i].below);
        return length < 0 ? NULL : path;
    }
    return NULL;
}

/* Is text of the form "name" or "organization/name"? */
static bool is_hub_id(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t first = strspn(text, allowed);
    const char *name = text[first] == '/' ? text + first + 1 : text;
    return first > 0 && text[0] != '.' && name[0] != '.' && name[0] != '\0' && name[strspn(name, allowed)] == '\0' &&
           !text_ends_with(text, ".safetensors") && !text_ends_with(text, ".json");
}

/* CACHE/models--ORGANIZATION--NAME, fresh. */
static char *repository_folder(const char *cache, const char *id)
{
    size_t first = strcspn(id, "/");
    const char *rest = id[first] ? id + first + 1 : NULL;
    char *path;
    int length = asprintf(&path, "%s/models--%.*s%s%s", cache, (int)first, id, rest ? "--" : "", rest ? rest : "");
    return length < 0 ? NULL : path;
}

/* The folder snapshots/COMMIT that refs/main of the repository names, fresh. NULL if there is none. */
static char *main_snapshot(const char *repository)
{
    char unused[512], *refs = path_join(repository, "refs/main"), *snapshots = path_join(repository, "snapshots");
    size_t length = 0;
    char *commit = refs && snapshots ? file_read(refs, 256, &length, unused) : NULL, *path = NULL;
    while (commit && length > 0 && strchr(" \t\r\n", commit[length - 1]))
        commit[--length] = '\0';
    if (commit && path_is_name(commit, length) && file_exists_in(snapshots, commit))
        path = path_join(snapshots, commit);
    free(commit);
    free(snapshots);
    free(refs);
    return path;
}

static char *find_in_cache(const char *id, char err[512])
{
    char shown[TEXT_PRINTABLE], name[TEXT_PRINTABLE];
    char *cache = hub_cache(), *repository = cache ? repository_folder(cache, id) : NULL;
    bool there = repository && file_is_folder(repository);
    char *path = there ? main_snapshot(repository) : NULL;
    path_printable(id, name);
    if (!path && cache && strchr(id, '/'))
        fail(err, "%s: %s (%s); %s --cache %s fetches it", name,
             there ? "the Hugging Face cache has no snapshot of it for refs/main"
                   : "no such file or folder, and not in the Hugging Face cache",
             path_printable(there ? repository : cache, shown), download_command(), name);
    else if (!path) /* without a slash it is more likely meant as a file's name than as a model's */
        fail(err, "%s: %s; %s fetches a model", name,
             there ? "the Hugging Face cache has no snapshot of it for refs/main" : "no such file or folder",
             download_command());
    free(repository);
    free(cache);
    return path;
}

/* The hub id in the address of a page or file of a hub, such as https://huggingface.co/ORG/NAME/tree/main. */
static bool address_id(const char *text, char id[200])
{
    const char *scheme = strstr(text, "://"), *host = scheme ? scheme + 3 : text, *rest = strchr(host, '/');
    if (!rest || (!scheme && strncmp(text, "huggingface.co/", 15) != 0))
        return false;
    rest += strncmp(rest, "/models/", 8) == 0 ? 8 : 1; /* modelscope.cn/models/ORG/NAME */
    size_t first = strcspn(rest, "/?#"), second = rest[first] == '/' ? strcspn(rest + first + 1, "/?#") : 0;
    snprintf(id, 200, "%.*s", (int)MIN(first + 1 + second, 199), rest);
    return second > 0 && is_hub_id(id);
}

char *locate_model(const char *model, char err[512])
{
    char shown[TEXT_PRINTABLE], id[200];
    if (file_exists(model))
        return allocated(strdup(model), err);
    if (errno == ENOENT && is_hub_id(model))
        return find_in_cache(model, err);
    if (errno == ENOENT && address_id(model, id))
        fail(err,
             "%s is an address: give %s, which is looked for in the Hugging Face cache, or fetch it with %s %s FOLDER "
             "and give FOLDER",
             path_printable(model, shown), id, download_command(), id);
    else if (errno == ENOENT)
        fail(err, "%s: %s; %s fetches a model", path_printable(model, shown), strerror(ENOENT), download_command());
    else
        fail(err, "%s: %s", path_printable(model, shown), strerror(errno));
    return NULL;
}

char *locate_folder(const char *model, char err[512])
{
    char *path = locate_model(model, err);
    if (!path || file_is_folder(path))
        return path;
    char *folder = allocated(path_folder(path), err);
    free(path);
    return folder;
}

/* The folder with the demo model of a program that is in that folder; fresh, or NULL. */
static char *find_demo(const char *folder)
{
    static const char *const demos[] = {"tests/demo", "../share/run/demo"};
    for (size_t i = 0; i < COUNT_OF(demos); i++) {
        char *path = path_join(folder, demos[i]), *real = path ? realpath(path, NULL) : NULL;
        free(path);
        if (real && locate_has_weights(real))
            return real;
        free(real);
    }
    return NULL;
}

char *locate_default(bool *is_demo, char err[512])
{
    *is_demo = !locate_has_weights(".");
    if (!*is_demo)
        return allocated(strdup("."), err);
    char *folder = download_program_folder(), *found = folder ? find_demo(folder) : NULL;
    if (!found)
        fail(err,
             "there is no " WEIGHTS_NAME " here, and no demo model beside the program; "
             "%s fetches Qwen2.5-0.5B-Instruct",
             download_command());
    free(folder);
    return found;
}
