/*
 * Aborts on ggml's own worker threads, and how spinning threads are called out of ggml.
 *
 * A worker that aborts cannot return an error, and the others would spin in ggml_barrier() for ever.
 * 1. workers start inside a frame of ours (the library's pthread_create slot points here);
 * 2. an aborting worker notes the text and signals the computing thread until that has
 *    left ggml; 3. the signal handler jumps out of ggml_barrier() only, where a thread holds
 *    nothing; 4. the pool is then freed and made anew (compute.c), calling out the other workers the same way.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "kit_native.h"
#include "workers.h"

typedef struct worker {
    pthread_t thread;
    struct worker *next;
} worker;

typedef struct {
    void *(*run)(void *);
    void *argument;
} start;

typedef struct {
    uintptr_t low, high;
} range;

_Atomic int kit_trouble;
kit_frame *kit_computing_frame;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static worker *workers;
static __thread worker *self __attribute__((tls_model("initial-exec")));
static pthread_t computing_thread;
static _Atomic int computing;
static char worker_text[2048];
static range barrier, library;
static int signal_number;

static uintptr_t program_counter(void *context) {
#if defined(__x86_64__)
    return (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)((ucontext_t *)context)->uc_mcontext.pc;
#else
#error "kit knows the program counter of x86-64 and aarch64 only"
#endif
}

static bool within(uintptr_t address, range where) {
    return address >= where.low && address < where.high;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    int trouble = atomic_load(&kit_trouble);
    if (!trouble || !kit_frame_top) return;
    bool computes = atomic_load(&computing) && pthread_equal(pthread_self(), computing_thread);
    if (!self && !(computes && kit_frame_top == kit_computing_frame)) return;
    /* after an abort only the barrier is safe; a cut takes threads out of any arithmetic */
    if (!within(program_counter(context), trouble == KIT_CUT ? library : barrier)) return;
    kit_frame *frame = kit_frame_top;
    kit_frame_top = frame->outer;
    kit_calls_cut(frame);
    __builtin_longjmp(frame->jump, 1);
}

static void remember(worker *me) {
    pthread_mutex_lock(&lock);
    me->next = workers;
    workers = me;
    pthread_mutex_unlock(&lock);
}

static void forget(worker *me) {
    pthread_mutex_lock(&lock);
    worker **link = &workers;
    while (*link && *link != me) link = &(*link)->next;
    if (*link) *link = me->next;
    pthread_mutex_unlock(&lock);
}

static void *worker_main(void *given) {
    start what = *(start *)given;
    free(given);
    worker me = {.thread = pthread_self()};
    kit_frame frame = {0};
    remember(&me);
    self = &me;
    if (__builtin_setjmp(frame.jump) == 0) {
        kit_frame_top = &frame;
        what.run(what.argument);
    }
    kit_frame_top = NULL;
    self = NULL;
    forget(&me);
    return NULL; /* ggml's join expects success */
}

static int create_worker(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    start *what = malloc(sizeof *what);
    if (!what) return ENOMEM;
    *what = (start){run, argument};
    int failed = pthread_create(thread, attributes, worker_main, what);
    if (failed) free(what);
    return failed;
}

static void worker_aborted(const char *text) {
    if (!self) {
        bool computes = atomic_load(&computing) && pthread_equal(pthread_self(), computing_thread);
        if (computes && kit_frame_top == kit_computing_frame) {
            int calm = KIT_CALM;
            atomic_compare_exchange_strong(&kit_trouble, &calm, KIT_ABORTED);
        }
        return; /* the calling thread's own frame does the rest */
    }
    int calm = KIT_CALM;
    if (atomic_compare_exchange_strong(&kit_trouble, &calm, KIT_ABORTED)) {
        snprintf(worker_text, sizeof worker_text, "%s [on a ggml worker thread]", text);
        while (atomic_load(&computing)) {
            pthread_kill(computing_thread, signal_number);
            usleep(200);
        }
    }
    kit_frame *frame = kit_frame_top;
    kit_frame_top = NULL;
    kit_calls_cut(frame);
    __builtin_longjmp(frame->jump, 1);
}

static void write_slot(void **slot, void *value) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)slot & ~(page - 1);
    /* full RELRO keeps the table read-only; widening is harmless where it is writable already */
    mprotect((void *)begin, page, PROT_READ | PROT_WRITE);
    *slot = value;
}

typedef struct {
    uintptr_t base;
    int patched;
} patching;

static int patch_object(struct dl_phdr_info *info, size_t size, void *given) {
    (void)size;
    patching *state = given;
    if (info->dlpi_addr != state->base) return 0;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC) dynamic = (const void *)begin;
        if (header->p_type == PT_LOAD && (header->p_flags & PF_X)) library = (range){begin, begin + header->p_memsz};
    }
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const ElfW(Rela) *tables[2] = {0};
    size_t counts[2] = {0};
    for (; dynamic && dynamic->d_tag; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB) symbols = (const void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_STRTAB) strings = (const void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_JMPREL) tables[0] = (const void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_PLTRELSZ) counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        if (dynamic->d_tag == DT_RELA) tables[1] = (const void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_RELASZ) counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
    }
    if (!symbols || !strings) return 1;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < counts[t]; i++) {
            size_t symbol = ELF64_R_SYM(tables[t][i].r_info);
            if (!symbol || strcmp(strings + symbols[symbol].st_name, "pthread_create") != 0) continue;
            write_slot((void **)(info->dlpi_addr + tables[t][i].r_offset), (void *)create_worker);
            state->patched++;
        }
    return 1;
}

int kit_workers_patch(void) {
    extern void ggml_barrier(struct ggml_threadpool *);
    Dl_info where;
    ElfW(Sym) *symbol = NULL;
    if (!dladdr1((void *)ggml_barrier, &where, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return 0;
    barrier = (range){(uintptr_t)where.dli_saddr, (uintptr_t)where.dli_saddr + symbol->st_size};
    patching state = {.base = (uintptr_t)where.dli_fbase};
    dl_iterate_phdr(patch_object, &state);
    signal_number = SIGRTMAX - 3;
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    sigaction(signal_number, &action, NULL);
    kit_worker_abort = worker_aborted;
    return state.patched;
}

bool kit_computing(bool entering) {
    bool before = atomic_load(&computing);
    if (entering) computing_thread = pthread_self();
    atomic_store(&computing, entering);
    return before;
}

void kit_workers_kick(void) {
    pthread_mutex_lock(&lock);
    for (worker *w = workers; w; w = w->next) pthread_kill(w->thread, signal_number);
    pthread_mutex_unlock(&lock);
}

void kit_workers_forget(void) {
    workers = NULL;
    pthread_mutex_init(&lock, NULL);
    atomic_store(&computing, 0);
    atomic_store(&kit_trouble, KIT_CALM);
}

int kit_workers_signal(void) {
    return signal_number;
}

const char *kit_workers_abort_text(void) {
    return worker_text;
}
