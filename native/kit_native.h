/* What the C files of kit._native share. ggml's headers come first. */
#ifndef KIT_NATIVE_H
#define KIT_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"

#include "interface/guard_interface.h"
#include "interface/compute_interface.h"
#include "interface/graph_interface.h"
#include "interface/watch_interface.h"
#include "interface/costs_interface.h"
#include "interface/gguf_check.h"
#include "interface/tracking_interface.h"

/* Where in Python something happens: node of a stack and number of a scope, 0 for none; see stacks.c. */
typedef struct {
    uint32_t stack, scope;
} kit_place;

/* A place to which an abort on this thread returns; innermost first. */
typedef struct kit_frame {
    struct kit_frame *outer;
    void *jump[5]; /* what __builtin_setjmp asks for */
    kit_place place; /* what was noted when the wrapper outside gave up the GIL */
} kit_frame;

extern __thread kit_frame *kit_frame_top __attribute__((tls_model("initial-exec")));
extern __thread char *kit_abort_text __attribute__((tls_model("initial-exec")));

/* The place noted by a wrapper that gave up the GIL, for hooks that run in it. */
extern __thread kit_place kit_place_noted __attribute__((tls_model("initial-exec")));
extern _Atomic int kit_stacks_wanted;
extern _Atomic int kit_recording;
/* The place of the calling thread: if it holds the GIL; or whatever it holds, taking the GIL where it must. */
kit_place kit_place_here(void);
kit_place kit_place_now(void);
/* From here on no hook touches Python. */
void kit_stacks_end(void);
/* A jump to `frame` is about to leave hooked calls behind. */
void kit_calls_cut(const void *frame);
/* What this thread allocates until told otherwise stays for good, by design. */
void kit_calls_by_design(bool begins);

/* Leaves the innermost frame with `text` as the reason; never returns. */
void kit_leave(const char *text) __attribute__((noreturn));

/* Set by workers.c: told of every abort first; on a worker thread it does not return. */
extern void (*kit_worker_abort)(const char *text);

/* Makes a read behind the end of a mapped file an abort: see faults.c. */
void kit_faults_install(void);

/* Tells the calling computation to end after the node it is at. */
void kit_request_stop(void);

#endif
