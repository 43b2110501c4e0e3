/*
 * Topological order of a graph with an explicit stack.
 *
 * ggml_build_forward_expand() recurses once per link of a chain and overflows an 8 MiB stack at about
 * 200,000 nodes. Given every tensor after its sources, its recursion stays one deep. The order
 * is the one ggml itself would produce: sources left to right, each before its user.
 *
 * ggml's allocators of graphs place a tensor that has no data and trust one that has: after another graph was
 * allocated, what they placed points into memory that may have been freed. So what they place is marked, and
 * taken back when the graph leaves its allocator.
 */
#include <stdlib.h>
#include <string.h>

#include "kit_native.h"

typedef struct {
    struct ggml_tensor **slots;
    size_t capacity; /* a power of two */
    size_t used;
} tensor_set;

typedef struct {
    struct ggml_tensor *tensor;
    int next_source;
} visit;

static size_t slot_of(const tensor_set *set, const struct ggml_tensor *tensor) {
    size_t hash = ((uintptr_t)tensor >> 4) * (size_t)0x9E3779B97F4A7C15ull;
    size_t index = (hash >> 20) & (set->capacity - 1);
    while (set->slots[index] && set->slots[index] != tensor) index = (index + 1) & (set->capacity - 1);
    return index;
}

static bool grow_set(tensor_set *set) {
    tensor_set larger = {.capacity = set->capacity ? set->capacity * 2 : 1024, .used = set->used};
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots) return false;
    for (size_t i = 0; i < set->capacity; i++)
        if (set->slots[i]) larger.slots[slot_of(&larger, set->slots[i])] = set->slots[i];
    free(set->slots);
    *set = larger;
    return true;
}

/* 1: added, 0: was there, -1: no memory */
static int add_to_set(tensor_set *set, struct ggml_tensor *tensor) {
    if (set->used * 2 >= set->capacity && !grow_set(set)) return -1;
    size_t index = slot_of(set, tensor);
    if (set->slots[index]) return 0;
    set->slots[index] = tensor;
    set->used++;
    return 1;
}

static bool ensure(void **array, size_t *capacity, size_t needed, size_t item) {
    if (needed <= *capacity) return true;
    size_t larger = *capacity ? *capacity * 2 : 1024;
    void *moved = realloc(*array, larger * item);
    if (!moved) return false;
    *array = moved;
    *capacity = larger;
    return true;
}

bool kit_graph_order(struct ggml_tensor **outputs, int n_outputs, kit_order *order) {
    tensor_set seen = {0};
    visit *stack = NULL;
    size_t stack_capacity = 0, depth = 0, order_capacity = 0, leaf_capacity = 0;
    bool ok = true;
    memset(order, 0, sizeof *order);
    for (int i = 0; ok && i < n_outputs; i++) {
        struct ggml_tensor *entering = outputs[i];
        while (ok) {
            if (entering) {
                int added = add_to_set(&seen, entering);
                if (added < 0) { ok = false; break; }
                if (added) {
                    ok = ensure((void **)&stack, &stack_capacity, depth + 1, sizeof *stack);
                    if (ok) stack[depth++] = (visit){entering, 0};
                }
                entering = NULL;
                continue;
            }
            if (!depth) break;
            visit *top = &stack[depth - 1];
            while (top->next_source < GGML_MAX_SRC && !top->tensor->src[top->next_source]) top->next_source++;
            if (top->next_source < GGML_MAX_SRC) {
                entering = top->tensor->src[top->next_source++];
                continue;
            }
            ok = ensure((void **)&order->tensors, &order_capacity, order->n_tensors + 1, sizeof *order->tensors);
            if (!ok) break;
            order->tensors[order->n_tensors++] = top->tensor;
            bool leaf = top->tensor->op == GGML_OP_NONE && !(top->tensor->flags & GGML_TENSOR_FLAG_PARAM);
            if (leaf) {
                ok = ensure((void **)&order->leafs, &leaf_capacity, order->n_leafs + 1, sizeof *order->leafs);
                if (!ok) break;
                order->leafs[order->n_leafs++] = top->tensor;
            } else {
                order->n_nodes++;
            }
            depth--;
        }
    }
    free(stack);
    free(seen.slots);
    if (!ok) kit_order_free(order);
    return ok;
}

void kit_graph_fill(struct ggml_cgraph *graph, const kit_order *order) {
    for (size_t i = 0; i < order->n_tensors; i++) ggml_build_forward_expand(graph, order->tensors[i]);
}

/* A bit ggml does not use: the tensor's place came from an allocator of graphs, and ends with it. */
enum { PLACED = 1 << 30 };

void kit_graph_will_be_placed(struct ggml_cgraph *graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        if (!node->data || (node->view_src && !node->buffer)) node->flags |= PLACED;
    }
}

void kit_graph_unplace(struct ggml_cgraph *graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) kit_tensor_unplace(ggml_graph_node(graph, i));
}

void kit_tensor_unplace(struct ggml_tensor *tensor) {
    if (!(tensor->flags & PLACED)) return;
    tensor->data = NULL;
    tensor->buffer = NULL;
    tensor->flags &= ~PLACED;
}

void kit_order_free(kit_order *order) {
    free(order->tensors);
    free(order->leafs);
    memset(order, 0, sizeof *order);
}
