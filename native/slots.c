/*
 * Relocation slots: where each loaded object keeps the addresses of the functions it calls elsewhere.
 *
 * 1. the loaded objects are listed, and each is kept loaded while its slots are patched; 2. in those that use
 * ggml, the slots of tracked functions (and of mmap, munmap) lead to our hooks; in all objects, dlsym
 * does too: it answers with hooks, and looks for libraries that came since; 3. everything is put back as it was.
 *
 * The lock is never waited for inside dlsym, which the loader may call from a constructor; whoever holds
 * it then looks again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tracking.h"

#if defined(__x86_64__)
enum { RELOC_CALL = R_X86_64_JUMP_SLOT, RELOC_DATA = R_X86_64_GLOB_DAT, RELOC_WORD = R_X86_64_64 };
#elif defined(__aarch64__)
enum { RELOC_CALL = R_AARCH64_JUMP_SLOT, RELOC_DATA = R_AARCH64_GLOB_DAT, RELOC_WORD = R_AARCH64_ABS64 };
#else
#error "kit knows the relocations of x86-64 and aarch64 only"
#endif

typedef struct {
    char *path; /* empty for the program itself */
    uintptr_t base, low, high, sealed_low, sealed_high;
    const ElfW(Dyn) *dynamic;
} object;

typedef struct {
    object *items;
    int n, room;
    unsigned long long changes;
} object_list;

typedef struct {
    const ElfW(Sym) *symbols;
    const char *strings;
    const ElfW(Rela) *tables[2];
    size_t counts[2];
} relocations;

typedef struct {
    void **slot, *before;
    bool sealed;
} patched_slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int look_again;
static patched_slot *patched;
static int n_patched, patched_room;
static uintptr_t *seen; /* bases of objects already looked at */
static int n_seen, seen_room;
static void **kept; /* handles */
static int n_kept, kept_room;
static _Atomic unsigned long long changes_seen;
static _Atomic uint64_t n_answers;

void kit_slots_lock(void) { pthread_mutex_lock(&lock); }
void kit_slots_unlock(void) { pthread_mutex_unlock(&lock); }

static bool make_room(void *array, int *room, int needed, size_t item) {
    if (needed <= *room) return true;
    int larger = *room ? *room * 2 : 64;
    void *moved = realloc(*(void **)array, larger * item);
    if (!moved) return false;
    *(void **)array = moved;
    *room = larger;
    return true;
}

static int list_object(struct dl_phdr_info *info, size_t size, void *given) {
    (void)size;
    object_list *list = given;
    list->changes = info->dlpi_adds;
    if (!make_room(&list->items, &list->room, list->n + 1, sizeof *list->items)) return 1;
    object found = {.base = info->dlpi_addr, .low = UINTPTR_MAX};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + header->p_vaddr, end = begin + header->p_memsz;
        if (header->p_type == PT_DYNAMIC) found.dynamic = (const void *)begin;
        if (header->p_type == PT_LOAD && begin < found.low) found.low = begin;
        if (header->p_type == PT_LOAD && end > found.high) found.high = end;
        if (header->p_type == PT_GNU_RELRO) found.sealed_low = begin, found.sealed_high = end;
    }
    found.path = strdup(info->dlpi_name ? info->dlpi_name : "");
    if (found.path) list->items[list->n++] = found;
    return 0;
}

static int count_changes(struct dl_phdr_info *info, size_t size, void *given) {
    (void)size;
    *(unsigned long long *)given = info->dlpi_adds;
    return 1;
}

static const void *table_at(const object *o, ElfW(Addr) address) {
    return (const void *)(address < o->base ? o->base + address : address); /* some loaders leave it relative */
}

static relocations relocations_of(const object *o) {
    relocations r = {0};
    for (const ElfW(Dyn) *d = o->dynamic; d && d->d_tag; d++) {
        if (d->d_tag == DT_SYMTAB) r.symbols = table_at(o, d->d_un.d_ptr);
        if (d->d_tag == DT_STRTAB) r.strings = table_at(o, d->d_un.d_ptr);
        if (d->d_tag == DT_JMPREL) r.tables[0] = table_at(o, d->d_un.d_ptr);
        if (d->d_tag == DT_PLTRELSZ) r.counts[0] = d->d_un.d_val / sizeof(ElfW(Rela));
        if (d->d_tag == DT_RELA) r.tables[1] = table_at(o, d->d_un.d_ptr);
        if (d->d_tag == DT_RELASZ) r.counts[1] = d->d_un.d_val / sizeof(ElfW(Rela));
    }
    if (!r.symbols || !r.strings) r.counts[0] = r.counts[1] = 0;
    return r;
}

static const char *symbol_of(const relocations *r, const ElfW(Rela) *entry) {
    unsigned type = ELF64_R_TYPE(entry->r_info), symbol = ELF64_R_SYM(entry->r_info);
    if (!symbol || (type != RELOC_CALL && type != RELOC_DATA && type != RELOC_WORD)) return NULL;
    if (type == RELOC_WORD && entry->r_addend) return NULL;
    return r->strings + r->symbols[symbol].st_name;
}

static bool uses_ggml(const relocations *r) {
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; r->tables[t] && i < r->counts[t]; i++) {
            const char *name = symbol_of(r, &r->tables[t][i]);
            if (name && strncmp(name, "ggml_", 5) == 0) return true;
        }
    return false;
}

/* The page of a slot of a sealed (RELRO) object is opened for the write and closed again. */
static void write_slot(void **slot, void *value, bool sealed) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *begin = (void *)((uintptr_t)slot & ~(page - 1));
    if (sealed && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return;
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    if (sealed) mprotect(begin, page, PROT_READ);
}

static bool is_sealed(const object *o, const void *slot) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot;
    return at >= (o->sealed_low & ~(page - 1)) && at < (o->sealed_high & ~(page - 1));
}

/* What a slot leads to; for one that is bound at its first call, what it would then lead to. */
static void *target_of(const object *o, const relocations *r, const ElfW(Rela) *entry, void *value, void *handle) {
    const ElfW(Sym) *symbol = &r->symbols[ELF64_R_SYM(entry->r_info)];
    uintptr_t at = (uintptr_t)value;
    bool unbound = ELF64_R_TYPE(entry->r_info) == RELOC_CALL && symbol->st_shndx == SHN_UNDEF && at >= o->low && at < o->high;
    if (!unbound) return value;
    const char *name = r->strings + symbol->st_name;
    void *global = dlopen(NULL, RTLD_LAZY);
    void *found = global ? dlsym(global, name) : NULL;
    if (global) dlclose(global);
    return found ? found : handle ? dlsym(handle, name) : NULL;
}

/* The library that called a hook, by where the hook returns to. */
static int caller_of(void *returns_to) {
    Dl_info where;
    return dladdr(returns_to, &where) && where.dli_fname ? kit_library_number(where.dli_fname) : 0;
}

static void *hooked_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    int64_t begun = kit_now_ns();
    void *got = mmap(address, length, protection, flags, file, offset);
    if (got == MAP_FAILED || file < 0 || !kit_recording) return got;
    int error = errno;
    kit_allocation what = {.kind = KIT_MAPPING, .address = got, .asked = length, .size = length, .type = "mapped file",
                           .begin_ns = begun, .first = UINT64_MAX, .place = kit_place_now(),
                           .library = caller_of(__builtin_return_address(0))};
    kit_events_allocated(&what);
    errno = error;
    return got;
}

static int hooked_munmap(void *address, size_t length) {
    if (kit_recording) kit_events_unmapped((uintptr_t)address, length, kit_place_now());
    return munmap(address, length);
}

static void look_for_new(void);

/* A tracked function asked for by name. The real dlsym runs as our tail, so that it sees who really called. */
static void *answer(void *handle, const char *name) {
    if (!kit_recording) return NULL;
    look_for_new();
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || !name || !kit_hook_tracks(name)) return NULL;
    void *original = dlsym(handle, name);
    void *hook = original ? kit_hook_for(name, original) : NULL;
    if (hook) n_answers++;
    return hook;
}

__attribute__((noinline, optimize("O2"))) static void *hooked_dlsym(void *handle, const char *name) {
    void *hook = answer(handle, name);
    if (hook) return hook;
    return dlsym(handle, name);
}

static void *hook_of_system(const char *name, bool ggml) {
    if (strcmp(name, "dlsym") == 0) return (void *)hooked_dlsym;
    if (!ggml) return NULL;
    if (strcmp(name, "mmap") == 0 || strcmp(name, "mmap64") == 0) return (void *)hooked_mmap;
    return strcmp(name, "munmap") == 0 ? (void *)hooked_munmap : NULL;
}

static bool is_ourselves(const object *o) {
    return (uintptr_t)&lock >= o->low && (uintptr_t)&lock < o->high;
}

static bool is_system(const object *o) {
    const char *name = strrchr(o->path, '/');
    name = name ? name + 1 : o->path;
    return strncmp(name, "linux-vdso", 10) == 0 || strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libdl.so", 8) == 0 ||
           strncmp(name, "ld-linux", 8) == 0 || strncmp(name, "ld-musl", 7) == 0;
}

static void patch_entry(const object *o, const relocations *r, const ElfW(Rela) *entry, bool ggml, void *handle) {
    const char *name = symbol_of(r, entry);
    if (!name) return;
    void **slot = (void **)(o->base + entry->r_offset), *hook = NULL;
    if (strncmp(name, "ggml_", 5) == 0) {
        if (!kit_hook_tracks(name)) return;
        void *target = target_of(o, r, entry, *slot, handle);
        hook = target ? kit_hook_for(name, target) : NULL;
    } else if (!is_ourselves(o)) {
        hook = hook_of_system(name, ggml);
    }
    if (!hook || *slot == hook || !make_room(&patched, &patched_room, n_patched + 1, sizeof *patched)) return;
    patched[n_patched++] = (patched_slot){slot, *slot, is_sealed(o, slot)};
    write_slot(slot, hook, is_sealed(o, slot));
}

static bool was_seen(const object *o) {
    for (int i = 0; i < n_seen; i++)
        if (seen[i] == o->base) return true;
    return false;
}

static void patch_object(const object *o) {
    if (!o->dynamic || is_system(o) || was_seen(o)) return;
    if (!make_room(&seen, &seen_room, n_seen + 1, sizeof *seen) || !make_room(&kept, &kept_room, n_kept + 1, sizeof *kept)) return;
    void *handle = dlopen(*o->path ? o->path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return; /* it was unloaded meanwhile */
    seen[n_seen++] = o->base;
    kept[n_kept++] = handle;
    relocations r = relocations_of(o);
    bool ggml = uses_ggml(&r);
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; r.tables[t] && i < r.counts[t]; i++) patch_entry(o, &r, &r.tables[t][i], ggml, handle);
}

/* With the lock held. Objects are listed first: inside dl_iterate_phdr the loader must not be asked anything. */
static void patch_all(void) {
    object_list list = {0};
    dl_iterate_phdr(list_object, &list);
    for (int i = 0; i < list.n; i++) {
        patch_object(&list.items[i]);
        free(list.items[i].path);
    }
    free(list.items);
    changes_seen = list.changes;
}

void kit_slots_patch(void) {
    pthread_mutex_lock(&lock);
    patch_all();
    pthread_mutex_unlock(&lock);
}

static void look_for_new(void) {
    unsigned long long changes = 0;
    dl_iterate_phdr(count_changes, &changes);
    if (changes == changes_seen) return;
    look_again = 1;
    while (look_again && pthread_mutex_trylock(&lock) == 0) {
        look_again = 0;
        if (kit_recording) patch_all();
        pthread_mutex_unlock(&lock);
    }
}

void kit_slots_restore(void) {
    pthread_mutex_lock(&lock);
    while (n_patched > 0) {
        patched_slot *p = &patched[--n_patched];
        write_slot(p->slot, p->before, p->sealed);
    }
    void **handles = kept;
    int n_handles = n_kept;
    kept = NULL;
    n_kept = kept_room = n_seen = 0;
    pthread_mutex_unlock(&lock);
    while (n_handles > 0) dlclose(handles[--n_handles]); /* which may run what a library does at its end */
    free(handles);
}

uint64_t kit_slots_answers(void) { return n_answers; }
