/*
 * The hooks: what runs in place of a tracked ggml function, one instance for each copy of ggml.
 *
 * 1. a patched slot, or a pointer that dlsym handed out, leads to the instance of its copy; 2. the instance
 * calls the original with no lock held, so that an abort may jump out of it; 3. it records
 * what came out. Which context, allocator or scheduler is at work is kept in a stack of calls per thread:
 * entries that a jump left behind are recognised by their address and dropped.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "copies.h"

enum { MAX_CALLS = 8 };

typedef struct {
    char *frame;    /* lies deeper in the stack than the caller's */
    uint64_t owner; /* event number or token */
    bool quiet;     /* aligned memory allocated in here is the backing of what the call returns */
} call;

_Atomic int kit_recording;
static _Atomic uint64_t next_token = 1ull << 63;
static __thread call calls[MAX_CALLS] __attribute__((tls_model("initial-exec")));
static __thread int n_calls __attribute__((tls_model("initial-exec")));
static __thread kit_place outermost __attribute__((tls_model("initial-exec")));
static __thread bool have_outermost __attribute__((tls_model("initial-exec")));
static __thread bool by_design __attribute__((tls_model("initial-exec")));

void kit_calls_cut(const void *frame) {
    while (n_calls && calls[n_calls - 1].frame < (const char *)frame) n_calls--;
}

void kit_calls_by_design(bool begins) { by_design = begins; }

/* Opens a call; false where there is no room for another, and then nothing must be closed. */
static bool enter(char *frame, uint64_t owner, bool quiet) {
    if (n_calls == MAX_CALLS) return false;
    calls[n_calls++] = (call){frame, owner, quiet};
    return true;
}

static void leave(bool entered) {
    if (entered && n_calls) n_calls--;
}

static uint64_t current_owner(void) { return n_calls ? calls[n_calls - 1].owner : 0; }

static kit_place place(void) {
    if (!n_calls) return kit_place_now();
    if (!have_outermost) outermost = kit_place_now();
    have_outermost = true;
    return outermost;
}

/* Begins a hooked call: drops what a jump left, forgets the place of the last outermost call. */
static void begin(char *frame) {
    kit_calls_cut(frame + 1);
    if (!n_calls) have_outermost = false;
}

#define BEGIN()            \
    char here = 0;         \
    char *frame = &here;   \
    begin(frame);          \
    int64_t begun = kit_now_ns();              \
    uint64_t before = kit_events_count();      \
    (void)begun;           \
    (void)before

static uint64_t allocated(kit_allocation what) {
    what.owner = current_owner();
    what.place = place();
    what.by_design = by_design;
    return kit_events_allocated(&what);
}

static void *on_ggml_init(ggml_copy *c, struct ggml_init_params params) {
    BEGIN();
    bool entered = enter(frame, current_owner(), true);
    void *context = c->call.ggml_init(params);
    leave(entered);
    if (!context) return NULL;
    uint64_t size = params.mem_buffer ? 0 : c->ask.ggml_get_mem_size ? c->ask.ggml_get_mem_size(context) : params.mem_size;
    allocated((kit_allocation){.kind = KIT_CONTEXT, .library = c->library, .address = context, .asked = params.mem_size,
                               .size = size, .begin_ns = begun, .first = before});
    return context;
}

/* Frees: recorded first, because the address may serve somebody else at once. */
#define FREE(kind, pointer, function, ...)                                              \
    do {                                                                                \
        if (!(pointer)) break;                                                          \
        BEGIN();                                                                        \
        uint64_t freed = kit_events_freed(kind, c->library, pointer, place());                   \
        bool entered = enter(frame, freed, true);                                       \
        c->call.function(__VA_ARGS__);                                                  \
        leave(entered);                                                                 \
        kit_events_set_duration(freed, begun);                                          \
        return;                                                                         \
    } while (0)

static void on_ggml_free(ggml_copy *c, void *context) {
    FREE(KIT_CONTEXT, context, ggml_free, context);
}

static void on_ggml_backend_buffer_free(ggml_copy *c, void *buffer) {
    FREE(KIT_BUFFER, buffer, ggml_backend_buffer_free, buffer);
}

static void on_ggml_gallocr_free(ggml_copy *c, void *allocator) {
    FREE(KIT_ALLOCATOR, allocator, ggml_gallocr_free, allocator);
}

static void on_ggml_backend_sched_free(ggml_copy *c, void *scheduler) {
    FREE(KIT_SCHEDULER, scheduler, ggml_backend_sched_free, scheduler);
}

/* The type a buffer has; where it is another one than was asked for, both. */
static const char *type_of(ggml_copy *c, void *buffer, void *asked, char text[128]) {
    const char *got = c->ask.ggml_backend_buffer_name ? c->ask.ggml_backend_buffer_name(buffer) : "";
    const char *wanted = asked && c->ask.ggml_backend_buft_name ? c->ask.ggml_backend_buft_name(asked) : got;
    if (!got || !wanted || !*got || strcmp(got, wanted) == 0) return got && *got ? got : wanted;
    snprintf(text, 128, "%s instead of %s", got, wanted);
    return text;
}

/* The device whose memory a buffer is in; NULL where ggml does not say, as for ordinary memory. */
static const char *device_of(ggml_copy *c, void *buffer) {
    if (!c->ask.ggml_backend_buffer_get_type || !c->ask.ggml_backend_buft_get_device || !c->ask.ggml_backend_dev_name)
        return NULL;
    void *type = c->ask.ggml_backend_buffer_get_type(buffer);
    void *device = type ? c->ask.ggml_backend_buft_get_device(type) : NULL;
    return device ? c->ask.ggml_backend_dev_name(device) : NULL;
}

static void *buffer_allocated(ggml_copy *c, void *buffer, void *type, uint64_t asked, bool owned,
                              int64_t begun, uint64_t before) {
    char text[128];
    if (!buffer) return NULL;
    uint64_t got = c->ask.ggml_backend_buffer_get_size ? c->ask.ggml_backend_buffer_get_size(buffer) : asked;
    allocated((kit_allocation){.kind = KIT_BUFFER, .library = c->library, .address = buffer, .asked = asked, .size = owned ? got : 0,
                               .type = type_of(c, buffer, type, text), .device = device_of(c, buffer),
                               .begin_ns = begun, .first = before});
    return buffer;
}

static void *on_ggml_backend_buft_alloc_buffer(ggml_copy *c, void *type, size_t size) {
    BEGIN();
    bool entered = enter(frame, current_owner(), true);
    void *buffer = c->call.ggml_backend_buft_alloc_buffer(type, size);
    leave(entered);
    return buffer_allocated(c, buffer, type, size, true, begun, before);
}

static void *on_ggml_backend_multi_buffer_alloc_buffer(ggml_copy *c, void **buffers, size_t n) {
    BEGIN();
    void *buffer = c->call.ggml_backend_multi_buffer_alloc_buffer(buffers, n);
    return buffer_allocated(c, buffer, NULL, 0, false, begun, before); /* its parts own the memory */
}

static void *on_ggml_backend_cpu_buffer_from_ptr(ggml_copy *c, void *pointer, size_t size) {
    BEGIN();
    void *buffer = c->call.ggml_backend_cpu_buffer_from_ptr(pointer, size);
    return buffer_allocated(c, buffer, NULL, size, false, begun, before);
}

static void *on_ggml_backend_dev_buffer_from_host_ptr(ggml_copy *c, void *device, void *pointer, size_t size, size_t max) {
    BEGIN();
    bool entered = enter(frame, current_owner(), true);
    void *buffer = c->call.ggml_backend_dev_buffer_from_host_ptr(device, pointer, size, max);
    leave(entered);
    return buffer_allocated(c, buffer, NULL, size, false, begun, before);
}

static void on_ggml_backend_buffer_set_usage(ggml_copy *c, void *buffer, int usage) {
    c->call.ggml_backend_buffer_set_usage(buffer, usage);
    if (buffer) kit_events_set_usage(buffer, usage);
}

/* The buffer of a context's tensors is known by the first of them. */
static void *named_after_first(ggml_copy *c, void *context, void *buffer) {
    void *tensor = buffer && c->ask.ggml_get_first_tensor ? c->ask.ggml_get_first_tensor(context) : NULL;
    if (tensor && c->ask.ggml_get_name) kit_events_set_name(buffer, c->ask.ggml_get_name(tensor));
    return buffer;
}

#define WITHIN(number, call_)                 \
    BEGIN();                                  \
    bool entered = enter(frame, number, false); \
    call_;                                    \
    leave(entered)

static void *on_ggml_backend_alloc_ctx_tensors_from_buft(ggml_copy *c, void *context, void *type) {
    WITHIN(kit_events_find(KIT_CONTEXT, context), void *buffer = c->call.ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    return named_after_first(c, context, buffer);
}

static void *on_ggml_backend_alloc_ctx_tensors(ggml_copy *c, void *context, void *backend) {
    WITHIN(kit_events_find(KIT_CONTEXT, context), void *buffer = c->call.ggml_backend_alloc_ctx_tensors(context, backend));
    return named_after_first(c, context, buffer);
}

static void *made(int kind, ggml_copy *c, void *thing, uint64_t token, int64_t begun, uint64_t before) {
    if (!thing) return NULL;
    uint64_t number = allocated((kit_allocation){.kind = kind, .library = c->library, .address = thing, .begin_ns = begun, .first = before});
    kit_events_adopt(before, token, number);
    return thing;
}

static void *on_ggml_gallocr_new(ggml_copy *c, void *type) {
    uint64_t token = next_token++;
    WITHIN(current_owner(), void *allocator = c->call.ggml_gallocr_new(type));
    return made(KIT_ALLOCATOR, c, allocator, token, begun, before);
}

static void *on_ggml_gallocr_new_n(ggml_copy *c, void **types, int n) {
    uint64_t token = next_token++;
    WITHIN(current_owner(), void *allocator = c->call.ggml_gallocr_new_n(types, n));
    return made(KIT_ALLOCATOR, c, allocator, token, begun, before);
}

static void *on_ggml_backend_sched_new(ggml_copy *c, void **backends, void **types, int n, size_t graph_size,
                                       bool parallel, bool offload) {
    uint64_t token = next_token++;
    WITHIN(token, void *scheduler = c->call.ggml_backend_sched_new(backends, types, n, graph_size, parallel, offload));
    return made(KIT_SCHEDULER, c, scheduler, token, begun, before);
}

static bool on_ggml_gallocr_reserve(ggml_copy *c, void *allocator, void *graph) {
    WITHIN(kit_events_find(KIT_ALLOCATOR, allocator), bool done = c->call.ggml_gallocr_reserve(allocator, graph));
    return done;
}

static bool on_ggml_gallocr_reserve_n(ggml_copy *c, void *allocator, void *graph, const int *nodes, const int *leafs) {
    WITHIN(kit_events_find(KIT_ALLOCATOR, allocator),
           bool done = c->call.ggml_gallocr_reserve_n(allocator, graph, nodes, leafs));
    return done;
}

static bool on_ggml_gallocr_alloc_graph(ggml_copy *c, void *allocator, void *graph) {
    WITHIN(kit_events_find(KIT_ALLOCATOR, allocator), bool done = c->call.ggml_gallocr_alloc_graph(allocator, graph));
    return done;
}

static bool on_ggml_backend_sched_reserve(ggml_copy *c, void *scheduler, void *graph) {
    WITHIN(kit_events_find(KIT_SCHEDULER, scheduler), bool done = c->call.ggml_backend_sched_reserve(scheduler, graph));
    return done;
}

static bool on_ggml_backend_sched_alloc_graph(ggml_copy *c, void *scheduler, void *graph) {
    WITHIN(kit_events_find(KIT_SCHEDULER, scheduler), bool done = c->call.ggml_backend_sched_alloc_graph(scheduler, graph));
    return done;
}

static bool is_backing(char *frame) {
    begin(frame);
    return n_calls && calls[n_calls - 1].quiet;
}

static void *on_ggml_aligned_malloc(ggml_copy *c, size_t size) {
    char here = 0;
    void *memory = NULL;
    if (is_backing(&here)) return c->call.ggml_aligned_malloc(size);
    int64_t begun = kit_now_ns();
    if (!(memory = c->call.ggml_aligned_malloc(size))) return NULL;
    allocated((kit_allocation){.kind = KIT_ALIGNED, .library = c->library, .address = memory, .asked = size, .size = size,
                               .begin_ns = begun, .first = UINT64_MAX});
    return memory;
}

static void on_ggml_aligned_free(ggml_copy *c, void *pointer, size_t size) {
    char here = 0;
    begin(&here);
    if (!kit_events_find(KIT_ALIGNED, pointer)) {
        c->call.ggml_aligned_free(pointer, size);
        return;
    }
    FREE(KIT_ALIGNED, pointer, ggml_aligned_free, pointer, size);
}

/* The instances: one function per place of a copy and tracked function. */
#define EACH_COPY(X)                                                                               \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)          \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define UNPACK(...) __VA_ARGS__
#define INSTANCE(copy, result, name, parameters, arguments)                                        \
    static result name##_of_##copy parameters {                                                    \
        ggml_copy *c = &kit_copies[copy];                                                          \
        if (__builtin_expect(!kit_recording, 0)) return c->call.name arguments;                    \
        return on_##name(c, UNPACK arguments);                                                     \
    }
#define INSTANCES(copy) KIT_TRACKED(INSTANCE, copy)
EACH_COPY(INSTANCES)

#define POINTER(copy, result, name, ...) (void *)name##_of_##copy,
#define POINTERS(copy) {KIT_TRACKED(POINTER, copy)},
void *const kit_hooks[KIT_MAX_COPIES][KIT_N_TRACKED] = {EACH_COPY(POINTERS)};
