/*
 * Computation: one thread pool for the process, aborts recovered, interrupts within 200 ms.
 *
 * An interrupt travels so: 1. SIGINT runs our handler, which notes it, arms a timer and calls
 * Python's own handler; 2. between two nodes ggml asks may_stop(), and the graph ends; 3. if one
 * single node still runs when the timer fires, the computing thread is cut out of it, and the pool,
 * which may hold workers in mid-node, is freed and made anew; 4. the call returns
 * KIT_STATUS_INTERRUPTED (or ggml's ABORTED) and Python raises KeyboardInterrupt.
 *
 * Callers serialize computations (kit/core/compute.py holds the lock).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kit_native.h"
#include "workers.h"

enum { FIRST_CUT_MS = 100, NEXT_CUT_MS = 2, MAX_ATTACHED = 256 };

static struct ggml_threadpool *pool;
static int pool_threads = 1;
static ggml_backend_t attached[MAX_ATTACHED];
static int n_attached;
static pthread_mutex_t attached_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int stop_requested;
static struct sigaction previous_sigint;
static timer_t cut_timer;
static bool have_timer;

static bool may_stop(void *unused) {
    (void)unused;
    return atomic_load(&stop_requested);
}

void kit_request_stop(void) {
    atomic_store(&stop_requested, 1);
}

void kit_interrupt(void) {
    kit_request_stop();
}

int kit_workers_install(void) {
    return kit_workers_patch();
}

/* ggml pauses, and so touches, the pool a backend had before: a pool is taken from all backends before it is freed. */
static void give_pool_to_backends(void) {
    pthread_mutex_lock(&attached_lock);
    for (int i = 0; i < n_attached; i++) ggml_backend_cpu_set_threadpool(attached[i], pool);
    pthread_mutex_unlock(&attached_lock);
}

static bool make_pool(void) {
    struct ggml_threadpool_params params = ggml_threadpool_params_default(pool_threads);
    kit_calls_by_design(true);
    pool = ggml_threadpool_new(&params);
    kit_calls_by_design(false);
    give_pool_to_backends();
    return pool != NULL;
}

void kit_pool_free(void) {
    if (!pool) return;
    struct ggml_threadpool *old = pool;
    pool = NULL;
    give_pool_to_backends();
    ggml_threadpool_free(old);
}

bool kit_pool_resize(int n_threads) {
    if (pool && n_threads == pool_threads) return true;
    kit_pool_free();
    pool_threads = n_threads;
    return make_pool();
}

int kit_pool_threads(void) {
    return pool ? pool_threads : 0;
}

bool kit_cpu_attach(ggml_backend_t backend) {
    pthread_mutex_lock(&attached_lock);
    bool room = n_attached < MAX_ATTACHED;
    if (room) {
        attached[n_attached++] = backend;
        ggml_backend_cpu_set_threadpool(backend, pool);
        ggml_backend_cpu_set_abort_callback(backend, may_stop, NULL);
    }
    pthread_mutex_unlock(&attached_lock);
    return room;
}

void kit_cpu_detach(ggml_backend_t backend) {
    pthread_mutex_lock(&attached_lock);
    for (int i = 0; i < n_attached; i++)
        if (attached[i] == backend) attached[i--] = attached[--n_attached];
    pthread_mutex_unlock(&attached_lock);
}

void kit_before_fork(void) {
    if (!kit_computing_frame) kit_pool_free(); /* its threads would not come along, and a lock of theirs might be held */
}

void kit_forked(void) {
    pthread_mutex_init(&attached_lock, NULL);
    if (pool) { /* forked in the middle of a computation: that pool is lost, and must not be touched */
        pool = NULL;
        n_attached = 0;
    }
    kit_workers_forget();
    have_timer = false;
}

/* A live pool crashes inside ggml's own exit handlers; ours runs before them, after Python is gone. */
__attribute__((destructor)) static void free_pool_at_exit(void) {
    if (!kit_computing_frame) kit_pool_free();
}

static void *free_in_background(void *given) {
    ggml_threadpool_free(given);
    return NULL;
}

/* Frees a pool whose workers may be inside a node or spinning in a barrier, and makes a new one. */
static void recover_pool(int trouble) {
    struct ggml_threadpool *broken = pool;
    struct timespec pause = {.tv_nsec = 1000000};
    pool = NULL;
    if (trouble == KIT_CUT)
        for (int i = 0; i < 20; i++) { /* first those in arithmetic, while nobody touches the pool's lock */
            kit_workers_kick();
            nanosleep(&pause, NULL);
        }
    give_pool_to_backends();
    atomic_store(&kit_trouble, KIT_ABORTED);
    pthread_t helper;
    if (broken && pthread_create(&helper, NULL, free_in_background, broken) == 0) {
        for (int i = 0; pthread_tryjoin_np(helper, NULL) != 0; i++) {
            if (trouble == KIT_CUT && i == 20) atomic_store(&kit_trouble, KIT_CUT);
            kit_workers_kick();
            pause.tv_nsec = 200000;
            nanosleep(&pause, NULL);
        }
    }
    atomic_store(&kit_trouble, KIT_CALM);
    make_pool();
}

static void set_cut_timer(long first_ms, long next_ms) {
    struct itimerspec when = {.it_value = {.tv_nsec = first_ms * 1000000}, .it_interval = {.tv_nsec = next_ms * 1000000}};
    timer_settime(cut_timer, 0, &when, NULL);
}

static void on_sigint(int number, siginfo_t *info, void *context) {
    kit_request_stop();
    if (have_timer) set_cut_timer(FIRST_CUT_MS, NEXT_CUT_MS);
    if (previous_sigint.sa_flags & SA_SIGINFO) previous_sigint.sa_sigaction(number, info, context);
    else previous_sigint.sa_handler(number);
}

static void on_cut_timer(int number, siginfo_t *info, void *context);
static struct sigaction worker_action;

/* The timer shares the workers' signal; a firing turns the pending stop into a cut. */
static void on_cut_timer(int number, siginfo_t *info, void *context) {
    if (info->si_code == SI_TIMER && atomic_load(&stop_requested)) {
        int calm = KIT_CALM;
        atomic_compare_exchange_strong(&kit_trouble, &calm, KIT_CUT);
    }
    worker_action.sa_sigaction(number, info, context);
}

static bool on_main_thread(void) {
    return syscall(SYS_gettid) == getpid();
}

static void make_cut_timer(void) {
    static bool handler_set;
    int number = kit_workers_signal();
    if (!handler_set) {
        struct sigaction action;
        sigaction(number, NULL, &worker_action);
        action = worker_action;
        action.sa_sigaction = on_cut_timer;
        sigaction(number, &action, NULL);
        handler_set = true;
    }
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = number};
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    have_timer = timer_create(CLOCK_MONOTONIC, &event, &cut_timer) == 0;
}

/* Puts our handler before Python's for the length of a computation on the main thread. */
static bool catch_sigint(void) {
    if (!on_main_thread()) return false;
    if (!have_timer) make_cut_timer();
    struct sigaction action = {.sa_sigaction = on_sigint, .sa_flags = SA_SIGINFO};
    struct sigaction current;
    sigaction(SIGINT, NULL, &current);
    bool ignored = !(current.sa_flags & SA_SIGINFO) && (current.sa_handler == SIG_IGN || current.sa_handler == SIG_DFL);
    bool ours = (current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_sigint;
    if (ignored || ours) return false;
    previous_sigint = current;
    sigaction(SIGINT, &action, NULL);
    return true;
}

static void release_sigint(void) {
    sigaction(SIGINT, &previous_sigint, NULL);
    if (atomic_load(&stop_requested) && have_timer) set_cut_timer(0, 0);
}

typedef struct {
    ggml_backend_sched_t scheduler;
    ggml_backend_t backend;
    struct ggml_cgraph *graph;
} job;

static int run(const job *work) {
    if (work->scheduler) return ggml_backend_sched_graph_compute(work->scheduler, work->graph);
    return ggml_backend_graph_compute(work->backend, work->graph);
}

static int compute(const job work) {
    if (!pool && !make_pool()) return GGML_STATUS_ALLOC_FAILED;
    bool nested = kit_computing(true); /* a watcher may compute something else between two nodes */
    if (!nested) atomic_store(&stop_requested, 0);
    bool caught = !nested && catch_sigint();
    volatile int status = KIT_STATUS_INTERRUPTED;
    kit_frame *outer_computation = kit_computing_frame;
    kit_frame frame = {.outer = kit_frame_top};
    if (__builtin_setjmp(frame.jump) == 0) {
        kit_frame_top = kit_computing_frame = &frame;
        status = run(&work);
        kit_frame_top = frame.outer;
    }
    kit_computing(false);
    kit_computing_frame = outer_computation;
    if (caught) release_sigint();
    int trouble = atomic_load(&kit_trouble);
    if (trouble) {
        if (trouble == KIT_ABORTED && !kit_abort_text) kit_abort_text = strdup(kit_workers_abort_text());
        recover_pool(trouble);
    }
    if (nested) kit_computing(true);
    return status;
}

int kit_compute_scheduled(ggml_backend_sched_t scheduler, struct ggml_cgraph *graph) {
    return compute((job){.scheduler = scheduler, .graph = graph});
}

int kit_compute_graph(ggml_backend_t backend, struct ggml_cgraph *graph) {
    return compute((job){.backend = backend, .graph = graph});
}
