/*
 * Where in Python an event happened.
 *
 * A stack is a node of a tree: (the caller's node, code object, instruction). Frames are walked now;
 * lines are looked up when somebody reads the report. The tree is touched only with the GIL held.
 *
 * 1. a thread that Python does not know, such as ggml's workers, has no stack; 2. one that holds the GIL
 * walks its frames; 3. one whose guarded wrapper gave the GIL up uses the stack noted just before that;
 * 4. one that gave it up elsewhere (ctypes, pybind11) takes it back for the walk, but only
 * at its outermost call into ggml, where it holds none of ggml's locks; 5. after Python began to
 * end, nobody touches it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/mman.h>

#include "tracking.h"

enum { MAX_DEPTH = 96, CHUNK = 1 << 14, MAX_CHUNKS = 1 << 12, FIRST_SLOTS = 1 << 14 };

typedef struct {
    uint32_t parent;
    int32_t instruction;
    PyCodeObject *code;
} node;

__thread kit_place kit_place_noted __attribute__((tls_model("initial-exec")));
_Atomic int kit_stacks_wanted;
static _Atomic int python_ended;
static node *chunks[MAX_CHUNKS];
static uint32_t *slots; /* hash table of nodes; 0 for an empty place */
static uint32_t n_slots, n_nodes;
static _Atomic uint64_t n_lost;
static PyObject *scope_variable;

static node *at(uint32_t id) { return &chunks[id / CHUNK][id % CHUNK]; }

static uint32_t slot_of(const node *wanted) {
    uint64_t hash = ((uint64_t)(uintptr_t)wanted->code >> 4) * 0x9E3779B97F4A7C15ull;
    hash = (hash ^ (uint32_t)wanted->instruction ^ (uint64_t)wanted->parent << 20) * 0xff51afd7ed558ccdull;
    uint32_t i = (hash >> 32) & (n_slots - 1);
    for (; slots[i]; i = (i + 1) & (n_slots - 1)) {
        const node *known = at(slots[i]);
        if (known->code == wanted->code && known->instruction == wanted->instruction && known->parent == wanted->parent)
            break;
    }
    return i;
}

static bool make_slots(void) {
    if ((n_nodes + 1) * 2 <= n_slots) return true;
    uint32_t *old = slots, n_old = n_slots, n_fresh = n_old ? 2 * n_old : FIRST_SLOTS;
    uint32_t *fresh = kit_map_pages(n_fresh * sizeof *fresh);
    if (!fresh) return false;
    slots = fresh;
    n_slots = n_fresh;
    for (uint32_t id = 1; id <= n_nodes; id++) slots[slot_of(at(id))] = id;
    if (old) munmap(old, n_old * sizeof *old);
    return true;
}

static bool make_node(void) {
    uint32_t chunk = (n_nodes + 1) / CHUNK;
    return chunk < MAX_CHUNKS && (chunks[chunk] || (chunks[chunk] = kit_map_pages(CHUNK * sizeof(node))));
}

static uint32_t node_of(uint32_t parent, PyCodeObject *code, int instruction) {
    node wanted = {parent, instruction, code};
    bool more = make_slots();
    uint32_t slot = slots ? slot_of(&wanted) : 0;
    if (slots && slots[slot]) return slots[slot];
    if (!more || !make_node()) return 0;
    Py_INCREF(code); /* for ever: its address stands for it */
    *at(++n_nodes) = wanted;
    return slots[slot] = n_nodes;
}

static uint32_t walk(PyThreadState *state) {
    PyCodeObject *codes[MAX_DEPTH];
    int instructions[MAX_DEPTH], depth = 0;
    PyFrameObject *frame = PyThreadState_GetFrame(state);
    while (frame && depth < MAX_DEPTH) {
        codes[depth] = PyFrame_GetCode(frame);
        instructions[depth++] = PyFrame_GetLasti(frame);
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    uint32_t id = 0;
    bool whole = true;
    while (depth-- > 0) {
        whole = whole && (id = node_of(id, codes[depth], instructions[depth]));
        Py_DECREF(codes[depth]);
    }
    if (!whole) n_lost++;
    return id;
}

static uint32_t current_scope(void) {
    PyObject *value = NULL;
    if (!scope_variable || PyErr_Occurred()) return 0;
    if (PyContextVar_Get(scope_variable, NULL, &value) != 0) PyErr_Clear();
    if (!value) return 0;
    unsigned long number = PyLong_AsUnsignedLongMask(value);
    Py_DECREF(value);
    return (uint32_t)number;
}

/* With the GIL held. Collecting garbage would run other people's finalizers in the middle of ggml. */
static kit_place look(PyThreadState *state) {
    int collecting = PyGC_Disable();
    kit_place place = {kit_stacks_wanted ? walk(state) : 0, current_scope()};
    if (collecting) PyGC_Enable();
    return place;
}

static bool python_is_over(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return python_ended || Py_IsFinalizing();
#else
    return python_ended || _Py_IsFinalizing();
#endif
}

static bool holds_gil(PyThreadState *state) {
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked() == state;
#else
    return _PyThreadState_UncheckedGet() == state;
#endif
}

kit_place kit_place_here(void) {
    PyThreadState *state = python_is_over() ? NULL : PyGILState_GetThisThreadState();
    return state && holds_gil(state) ? look(state) : (kit_place){0};
}

kit_place kit_place_now(void) {
    PyThreadState *state = python_is_over() ? NULL : PyGILState_GetThisThreadState();
    if (!state) return (kit_place){0};
    if (holds_gil(state)) return look(state);
    if (kit_place_noted.stack || kit_place_noted.scope) return kit_place_noted;
    if (!kit_stacks_wanted) return (kit_place){0};
    PyGILState_STATE before = PyGILState_Ensure();
    kit_place place = look(state);
    PyGILState_Release(before);
    return place;
}

uint64_t kit_stacks_lost(void) { return n_lost; }

void kit_stacks_end(void) {
    python_ended = 1;
}

void kit_stack_set_scope_variable(void *variable) {
    Py_XINCREF((PyObject *)variable);
    scope_variable = variable;
}

bool kit_stack_node_get(uint32_t id, kit_stack_node *found) {
    if (!id || id > n_nodes) return false;
    node *n = at(id);
    *found = (kit_stack_node){n->parent, PyCode_Addr2Line(n->code, n->instruction), n->code};
    return true;
}
