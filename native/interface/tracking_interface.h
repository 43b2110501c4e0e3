/* Allocation tracking: see hooks.c, events.c, stacks.c, slots.c. Plain C: gcc includes this file and cffi parses it. */

enum kit_kind {
    KIT_CONTEXT = 1,
    KIT_BUFFER = 2,
    KIT_ALLOCATOR = 3,
    KIT_SCHEDULER = 4,
    KIT_MAPPING = 5,
    KIT_ALIGNED = 6
};

enum kit_action {
    KIT_ALLOC = 1,
    KIT_FREE = 2,
    KIT_FREE_OF_OLDER = 3 /* of something allocated before tracking began */
};

enum { KIT_USAGE_BY_DESIGN = 255 };

/* One event. Indices of events count from 0 when the store is empty; here they are stored plus one, 0 for none. */
typedef struct kit_event {
    int64_t time_ns;       /* CLOCK_MONOTONIC at the end of an allocation, at the begin of a free */
    uint64_t address;      /* ggml's pointer; of a mapping, its first byte */
    uint64_t asked;
    uint64_t size;         /* bytes it owns; 0 for memory that belongs to somebody else */
    uint64_t partner;      /* the free of this allocation, or the allocation of this free */
    uint64_t owner;        /* the allocation of the context, allocator or scheduler in whose call it happened */
    uint32_t duration_ns;  /* of ggml's function, at most 4.29 s */
    uint32_t thread;
    uint32_t stack;        /* innermost node of the Python stack; 0 where there is none */
    uint32_t scope;
    uint32_t type;         /* name of the buffer type */
    uint32_t label;        /* given by kit_event_label */
    uint32_t name;         /* name of the first tensor of the context that was allocated */
    uint8_t kind;
    uint8_t action;
    uint8_t usage;         /* enum ggml_backend_buffer_usage, plus one; or KIT_USAGE_BY_DESIGN */
    uint8_t copy;          /* which copy of ggml, see kit_track_copy_path */
} kit_event;

/* One node of a Python stack. */
typedef struct kit_stack_node {
    uint32_t parent; /* the caller's node, 0 at the outermost */
    int32_t line;
    void *code;      /* the code object, kept alive for ever */
} kit_stack_node;

/* Patches the relocation slots of every loaded object that uses ggml; returns how many were patched. */
int kit_track_start(bool stacks);
/* Puts every slot back. Pointers that dlsym handed out meanwhile stay valid and cost one test. */
void kit_track_stop(void);
/* As kit_track_stop, for good: no Python is touched from here on. */
void kit_track_shutdown(void);
int kit_track_copies(void);
const char *kit_track_copy_path(int copy);
/* The function that records calls of the ggml function at `address`; 0 if it is none that is tracked. */
uintptr_t kit_track_hook_of(uintptr_t address);

uint64_t kit_events_count(void);
/* Copies events from `first` on; returns how many. */
uint64_t kit_events_copy(uint64_t first, uint64_t room, kit_event *events);
/* Indices of the allocations that are live; returns how many there are, which may exceed `room`. */
uint64_t kit_events_live(uint64_t room, uint64_t *indices);
/* Forgets everything; for when nobody tracks. */
void kit_events_clear(void);
/* Gives the live `kind` at `address` a label. */
void kit_event_label(int kind, uintptr_t address, uint32_t label);
/* Notes what no hook sees, such as a mapping made by Python. */
void kit_event_note(int kind, uintptr_t address, uint64_t nbytes, bool freed);
const char *kit_name_text(uint32_t name);
/* ggml's name of the device that buffers of the type called `type` lie on; empty where ggml does not say. */
const char *kit_name_device(uint32_t type);

bool kit_stack_node_get(uint32_t id, kit_stack_node *node);
/* The contextvars.ContextVar that holds the number of the current scope. */
void kit_stack_set_scope_variable(void *variable);
