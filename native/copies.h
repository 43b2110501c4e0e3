/* The copies of ggml in this process and the hooks of each; see copies.c. */
#ifndef KIT_COPIES_H
#define KIT_COPIES_H

#include "hook_list.h"
#include "tracking.h"

#define KIT_ENUMERATE(copy, result, name, ...) KIT_AT_##name,
enum { KIT_TRACKED(KIT_ENUMERATE, 0) KIT_N_TRACKED };

#define KIT_CALL_MEMBER(copy, result, name, parameters, ...) result(*name) parameters;
#define KIT_ASK_MEMBER(result, name, parameters) result(*name) parameters;
typedef struct {
    const char *path; /* NULL where the place is free */
    void *base;
    int library;
    struct { KIT_TRACKED(KIT_CALL_MEMBER, 0) } call;
    struct { KIT_ASKED(KIT_ASK_MEMBER) } ask;
} ggml_copy;

extern ggml_copy kit_copies[KIT_MAX_COPIES];
extern void *const kit_hooks[KIT_MAX_COPIES][KIT_N_TRACKED]; /* hooks.c */

#endif
