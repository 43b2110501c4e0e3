/*
 * Who tracks: the first one begins the recording, the last one ends it and puts everything back.
 *
 * Each step is whole: an interrupt of Python comes before it or after it, and a `kit_tracking` says which. One
 * lock is held over all of it, never with the GIL, and no Python runs inside.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "tracking.h"

typedef struct {
    void **pointer, *original, *hook;
} swap;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t epoch; /* counts the times that somebody began while nobody tracked */
static _Atomic uint64_t ended; /* the last epoch that is over */
static int n_tracking, n_with_stacks;
static bool over;
static swap *swaps; /* pointers outside of all slots that lead to hooks */
static int n_swaps, swaps_room;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    kit_slots_lock();
    kit_copies_lock();
    kit_events_lock();
}

static void after_fork(void) {
    kit_events_unlock();
    kit_copies_unlock();
    kit_slots_unlock();
    pthread_mutex_unlock(&lock);
}

static void in_child(void) {
    kit_events_in_child();
    after_fork();
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, in_child);
}

static kit_losses losses_now(void) {
    kit_losses now = {.lines = kit_stacks_lost(), .copies = kit_copies_left_out()};
    kit_events_losses(&now);
    return now;
}

bool kit_track_start(kit_tracking *who, uint64_t ticket, bool stacks) {
    pthread_mutex_lock(&lock);
    bool begins = !who->ticket;
    if (begins) {
        if (!n_tracking) {
            kit_events_clear();
            kit_copies_refresh();
            epoch++;
        }
        n_tracking++;
        n_with_stacks += stacks;
        *who = (kit_tracking){.ticket = ticket, .first = kit_events_count(), .epoch = epoch, .stacks = stacks};
        who->before = losses_now();
        who->before.copies = 0; /* they are there as long as nobody begins anew */
        kit_stacks_wanted = n_with_stacks > 0;
        if (!over) kit_slots_patch();
        kit_recording = !over;
    }
    pthread_mutex_unlock(&lock);
    return begins;
}

static void put_everything_back(void) {
    kit_recording = 0;
    kit_slots_restore();
    while (n_swaps > 0) {
        swap *s = &swaps[--n_swaps];
        if (*s->pointer == s->hook) *s->pointer = s->original;
    }
}

bool kit_track_stop(kit_tracking *who, uint64_t ticket) {
    pthread_mutex_lock(&lock);
    bool ends = who->ticket && (!ticket || ticket == who->ticket);
    if (ends) {
        who->ticket = 0;
        n_with_stacks -= who->stacks;
        kit_stacks_wanted = n_with_stacks > 0;
        if (!--n_tracking) {
            put_everything_back();
            kit_events_clear();
            ended = epoch;
        }
    }
    pthread_mutex_unlock(&lock);
    return ends;
}

void kit_track_shutdown(void) {
    kit_stacks_end();
    pthread_mutex_lock(&lock);
    over = true;
    kit_recording = 0;
    kit_slots_restore();
    pthread_mutex_unlock(&lock);
}

uint64_t kit_track_epoch(void) { return epoch; }

uint64_t kit_track_ended(void) { return ended; }

uint64_t kit_track_answers(void) { return kit_slots_answers(); }

kit_losses kit_track_losses(const kit_tracking *who) {
    kit_losses now = losses_now();
    now.events -= who->before.events;
    now.frees -= who->before.frees;
    now.names -= who->before.names;
    now.lines -= who->before.lines;
    return now;
}

uintptr_t kit_track_hook_of(uintptr_t address) { return (uintptr_t)kit_hook_of((void *)address); }

static bool make_room(int n) {
    if (n <= swaps_room) return true;
    int larger = n > 2 * swaps_room ? n : 2 * swaps_room;
    swap *moved = realloc(swaps, larger * sizeof *moved);
    if (!moved) return false;
    swaps = moved;
    swaps_room = larger;
    return true;
}

void kit_track_swap_in(uint64_t of_epoch, uint64_t n, const uintptr_t *pointers) {
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; n_tracking && epoch == of_epoch && i < n; i++) {
        void **pointer = (void **)pointers[i], *hook = kit_hook_of(*pointer);
        if (!hook || !make_room(n_swaps + 1)) continue;
        swaps[n_swaps++] = (swap){pointer, *pointer, hook};
        *pointer = hook;
    }
    pthread_mutex_unlock(&lock);
}

void kit_track_swap_out(uint64_t n, const uintptr_t *pointers) {
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; !n_tracking && i < n; i++) {
        void **pointer = (void **)pointers[i], *original = *pointer ? kit_original_of(*pointer) : NULL;
        if (original) *pointer = original;
    }
    pthread_mutex_unlock(&lock);
}
