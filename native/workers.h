/* ggml's worker threads, each inside a frame of ours; see workers.c. */
#ifndef KIT_WORKERS_H
#define KIT_WORKERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Why threads are being called out of ggml. */
enum { KIT_CALM = 0, KIT_ABORTED = 1, KIT_CUT = 2 };

extern _Atomic int kit_trouble;

/* Patches pthread_create of the ggml CPU library and installs the signal; returns slots patched. */
int kit_workers_patch(void);
/* The calling thread computes from here on (true) or has left ggml (false); returns what held before. */
bool kit_computing(bool entering);
/* The frame of the running computation: an abort that finds another one on top is not the computation's. */
extern kit_frame *kit_computing_frame;
/* Sends the signal to every worker. */
void kit_workers_kick(void);
/* After fork(): the child has no workers. */
void kit_workers_forget(void);
/* The signal the threads are called with. */
int kit_workers_signal(void);
/* What the abort of a worker said, for the thread that called compute. */
const char *kit_workers_abort_text(void);

#endif
