/* Allocation tracking: see tracking.c, hooks.c, events.c, stacks.c, slots.c. Plain C: gcc includes this file and cffi parses it. */

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
    uint8_t copy;          /* the library that made it, see kit_track_copy_path; 0 for Python */
} kit_event;

/* One node of a Python stack. */
typedef struct kit_stack_node {
    uint32_t parent; /* the caller's node, 0 at the outermost */
    int32_t line;
    void *code;      /* the code object, kept alive for ever */
} kit_stack_node;

/* What a recording lacks. */
typedef struct kit_losses {
    uint64_t events; /* found no room */
    uint64_t frees;  /* were not seen; counted where something new lies at the address */
    uint64_t names;
    uint64_t lines;  /* events whose stack found no room */
    uint64_t copies; /* times that a function of one copy of ggml too many was met */
} kit_losses;

/* One who tracks. All zero: does not. */
typedef struct kit_tracking {
    uint64_t ticket; /* what it began with; 0 while it does not track */
    uint64_t first;  /* number of events there were before */
    uint64_t epoch;
    kit_losses before;
    bool stacks;
} kit_tracking;

/* Begins under a `ticket` that is not 0; false, and nothing done, if it tracks already. The first one hooks. */
bool kit_track_start(kit_tracking *who, uint64_t ticket, bool stacks);
/* Ends what began under `ticket`, or under any if that is 0; false if there is no such thing. The last one puts every
   slot back and forgets the events. Pointers that dlsym handed out meanwhile stay valid and cost one test. */
bool kit_track_stop(kit_tracking *who, uint64_t ticket);
/* Puts the slots back for good: no Python is touched from here on. */
void kit_track_shutdown(void);
/* Epochs are the times from a first to a last one who tracks, numbered from 1: the newest, and the last that ended. */
uint64_t kit_track_epoch(void);
uint64_t kit_track_ended(void);
kit_losses kit_track_losses(const kit_tracking *who);
const char *kit_track_copy_path(int copy);
/* The hook of the tracked function at `address`; 0 for anything else. */
uintptr_t kit_track_hook_of(uintptr_t address);
/* Leads the `n` pointers from tracked functions to their hooks until `epoch` ends; what they lie in must live as long. */
void kit_track_swap_in(uint64_t epoch, uint64_t n, const uintptr_t *pointers);
/* Leads them from hooks to the functions, if nobody tracks. */
void kit_track_swap_out(uint64_t n, const uintptr_t *pointers);
/* Number of hooks that dlsym has handed out. */
uint64_t kit_track_answers(void);

uint64_t kit_events_count(void);
/* Copies events from `first` on; returns how many. */
uint64_t kit_events_copy(uint64_t first, uint64_t room, kit_event *events);
/* Gives the live `kind` at `address` a label. */
void kit_event_label(int kind, uintptr_t address, uint32_t label);
/* Notes what no hook sees, such as a mapping made by Python. */
void kit_event_note(int kind, uintptr_t address, uint64_t nbytes, const char *type, bool freed);
const char *kit_name_text(uint32_t name);
/* ggml's name of the device that buffers of the type called `type` lie on; empty where ggml does not say. */
const char *kit_name_device(uint32_t type);

bool kit_stack_node_get(uint32_t id, kit_stack_node *node);
/* The contextvars.ContextVar that holds the number of the current scope. */
void kit_stack_set_scope_variable(void *variable);
