/*
 * The copies of ggml in this process: each has a place, and so hooks of its own.
 *
 * A place is free again when its library was unloaded, which is looked at when tracking begins. Events do not
 * carry the place but the number of the library's path, which stays for ever. The loader is asked with no lock
 * held: it may be waiting for us inside a constructor.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "copies.h"

enum { MAX_LIBRARIES = 256 };

#define NAME_OF(copy, result, name, ...) #name,
static const char *const tracked_names[] = {KIT_TRACKED(NAME_OF, 0)};

ggml_copy kit_copies[KIT_MAX_COPIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *libraries[MAX_LIBRARIES]; /* paths by number; 0 is for what no copy of ggml did */
static int n_libraries = 1;
static _Atomic uint64_t n_left_out;

void kit_copies_lock(void) { pthread_mutex_lock(&lock); }
void kit_copies_unlock(void) { pthread_mutex_unlock(&lock); }

static int number_of(const char *name) {
    if (strncmp(name, "ggml_", 5) != 0) return -1;
    for (int f = 0; f < KIT_N_TRACKED; f++)
        if (strcmp(name, tracked_names[f]) == 0) return f;
    return -1;
}

bool kit_hook_tracks(const char *name) { return number_of(name) >= 0; }

int kit_library_number(const char *path) {
    char *kept = strdup(path);
    int number = 0;
    pthread_mutex_lock(&lock);
    for (int i = 1; i < n_libraries && !number; i++)
        if (strcmp(libraries[i], path) == 0) number = i;
    if (!number && kept && n_libraries < MAX_LIBRARIES) {
        libraries[number = n_libraries++] = kept;
        kept = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(kept);
    return number;
}

const char *kit_track_copy_path(int copy) {
    return copy > 0 && copy < n_libraries ? libraries[copy] : "";
}

/* Asks the loader for the functions of `copy`. */
static void learn(ggml_copy *copy) {
    void *handle = dlopen(copy->path, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) handle = dlopen(NULL, RTLD_LAZY); /* ggml inside the program itself */
    if (!handle) return;
    void **originals = (void **)&copy->call;
    for (int f = 0; f < KIT_N_TRACKED; f++) originals[f] = dlsym(handle, tracked_names[f]);
#define LEARN(result, name, ...) copy->ask.name = (void *)dlsym(handle, #name);
    KIT_ASKED(LEARN)
    dlclose(handle);
}

/* With the lock held: the place of a library; with NULL, a free one. -1 where there is none. */
static int place_of(const char *path, const void *base) {
    for (int k = 0; k < KIT_MAX_COPIES; k++) {
        const ggml_copy *copy = &kit_copies[k];
        if (path ? copy->path && copy->base == base && strcmp(copy->path, path) == 0 : !copy->path) return k;
    }
    return -1;
}

static int enter(const ggml_copy *fresh) {
    pthread_mutex_lock(&lock);
    int k = place_of(fresh->path, fresh->base);
    if (k < 0 && (k = place_of(NULL, NULL)) >= 0) kit_copies[k] = *fresh;
    pthread_mutex_unlock(&lock);
    return k;
}

/* The copy of ggml whose function lies at `original`, entered when it is seen first; -1 without a place for it. */
static int copy_of(void *original) {
    Dl_info where;
    if (!dladdr(original, &where) || !where.dli_fname) return -1;
    pthread_mutex_lock(&lock);
    int k = place_of(where.dli_fname, where.dli_fbase);
    pthread_mutex_unlock(&lock);
    if (k >= 0) return k;
    int library = kit_library_number(where.dli_fname);
    ggml_copy fresh = {.path = kit_track_copy_path(library), .base = where.dli_fbase, .library = library};
    if (library) learn(&fresh);
    k = library ? enter(&fresh) : -1;
    if (k < 0) n_left_out++;
    return k;
}

static bool is_loaded(const ggml_copy *copy) {
    Dl_info where;
    return dladdr(copy->base, &where) && where.dli_fbase == copy->base && where.dli_fname &&
           strcmp(where.dli_fname, copy->path) == 0;
}

void kit_copies_refresh(void) {
    for (int k = 0; k < KIT_MAX_COPIES; k++) {
        ggml_copy *copy = &kit_copies[k], fresh = {.path = copy->path, .base = copy->base, .library = copy->library};
        if (!fresh.path) continue;
        bool loaded = is_loaded(&fresh);
        if (loaded) learn(&fresh); /* it may be another file of the same name at the same place */
        pthread_mutex_lock(&lock);
        if (!loaded) copy->path = NULL;
        void **known = (void **)&copy->call, **found = (void **)&fresh.call;
        for (int f = 0; f < KIT_N_TRACKED; f++)
            if (loaded && found[f]) known[f] = found[f];
        if (loaded) copy->ask = fresh.ask;
        pthread_mutex_unlock(&lock);
    }
    n_left_out = 0;
}

uint64_t kit_copies_left_out(void) { return n_left_out; }

void *kit_hook_for(const char *name, void *original) {
    int f = number_of(name);
    int k = f < 0 ? -1 : copy_of(original);
    if (k < 0) return NULL;
    void **known = (void **)&kit_copies[k].call + f;
    if (!*known) *known = original;
    return kit_hooks[k][f];
}

void *kit_hook_of(const void *original) {
    for (int k = 0; original && k < KIT_MAX_COPIES; k++)
        for (int f = 0; kit_copies[k].path && f < KIT_N_TRACKED; f++)
            if (((void **)&kit_copies[k].call)[f] == original) return kit_hooks[k][f];
    return NULL;
}

void *kit_original_of(const void *hook) {
    for (int k = 0; k < KIT_MAX_COPIES; k++)
        for (int f = 0; f < KIT_N_TRACKED; f++)
            if (kit_hooks[k][f] == hook) return ((void **)&kit_copies[k].call)[f];
    return NULL;
}
