/*
 * The scheduler's evaluation callback.
 *
 * 1. before a node the scheduler asks whether anybody wants it: a binary search over the watched
 *    tensors, no GIL; 2. it computes up to that node and synchronizes; 3. we copy the value out,
 *    still without the GIL, or call kit_on_stage() in Python, on the thread that called compute;
 *    4. false ends the computation after this split, and a stop request ends the others.
 */
#include "kit_native.h"

static bool (*stage_function)(int call, void *user);

void kit_watch_set_function(bool (*function)(int call, void *user)) {
    stage_function = function;
}

static kit_watch_item *find(const kit_watch *watch, const struct ggml_tensor *tensor) {
    int low = 0, high = watch->n_items - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        kit_watch_item *item = &watch->items[middle];
        if (item->tensor == tensor) return item;
        if ((uintptr_t)item->tensor < (uintptr_t)tensor) low = middle + 1;
        else high = middle - 1;
    }
    return NULL;
}

/* Python's own code is in no frame: a fault there is not ggml's, and must not be jumped out of. */
static bool call_python(int call, void *user) {
    if (!stage_function) return true;
    kit_frame *frame = kit_frame_top;
    kit_frame_top = NULL;
    bool go_on = stage_function(call, user);
    kit_frame_top = frame;
    return go_on;
}

bool kit_watch_callback(struct ggml_tensor *tensor, bool ask, void *user) {
    kit_watch *watch = user;
    kit_watch_item *item = find(watch, tensor);
    if (ask) return item != NULL;
    if (!item) return true;
    watch->n_seen++;
    if (item->copy_to) ggml_backend_tensor_get(tensor, item->copy_to, 0, item->nbytes);
    if (item->call >= 0 && !call_python(item->call, watch->user)) {
        watch->stop = true;
        kit_request_stop();
        return false;
    }
    return true;
}
