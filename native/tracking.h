/* What the files of the allocation tracker share. */
#ifndef KIT_TRACKING_H
#define KIT_TRACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "kit_native.h"

enum { KIT_MAX_COPIES = 32 };

/* Every lock of the tracker is held over fork(), taken in the order of this file's sections. */

/* tracking.c: who tracks. */

/* slots.c */
void kit_slots_patch(void);
void kit_slots_restore(void);
void kit_slots_lock(void);
void kit_slots_unlock(void);
/* How many hooks dlsym has answered with. */
uint64_t kit_slots_answers(void);

/* copies.c */
/* The hook of `name` for calls whose original is `original`; NULL for names that are not tracked. */
void *kit_hook_for(const char *name, void *original);
bool kit_hook_tracks(const char *name);
/* The hook of a tracked function; the function of a hook; NULL for anything else. */
void *kit_hook_of(const void *original);
void *kit_original_of(const void *hook);
/* Number of a library's path, as events carry it; 0 when there are too many. */
int kit_library_number(const char *path);
/* Frees the places of libraries that were unloaded; for when nobody tracks. */
void kit_copies_refresh(void);
/* How often a copy of ggml found no place since then. */
uint64_t kit_copies_left_out(void);
void kit_copies_lock(void);
void kit_copies_unlock(void);

/* events.c */
typedef struct {
    int kind, library;
    const void *address;
    uint64_t asked, size;
    const char *type, *name, *device;
    int64_t begin_ns;
    uint64_t owner;     /* index + 1 of an event, or a token, see kit_events_adopt */
    uint64_t first;     /* count of events when the call began: what is newer at this address is the same thing */
    kit_place place;
    bool by_design;
} kit_allocation;

int64_t kit_now_ns(void);
/* Records an allocation; returns its index + 1, or 0 without memory for it. */
uint64_t kit_events_allocated(const kit_allocation *what);
/* Records a free, before it happens; returns its index + 1. */
uint64_t kit_events_freed(int kind, int library, const void *address, kit_place place);
void kit_events_set_duration(uint64_t index, int64_t begin_ns);
void kit_events_set_usage(const void *buffer, int usage);
void kit_events_set_name(const void *buffer, const char *name);
/* The live allocation of `kind` at `address`: index + 1, or 0. */
uint64_t kit_events_find(int kind, const void *address);
/* Gives to `owner` what was recorded from event `first` on under `token`. */
void kit_events_adopt(uint64_t first, uint64_t token, uint64_t owner);
/* A mapping lost [begin, begin + size): what is left of it stays live under its old stack. */
void kit_events_unmapped(uintptr_t begin, uint64_t size, kit_place place);
/* Forgets everything; for when nobody tracks. */
void kit_events_clear(void);
/* Adds what the store and the names did without. */
void kit_events_losses(kit_losses *losses);
void kit_events_lock(void);
void kit_events_unlock(void);
void kit_events_in_child(void);

/* names.c: only with the lock of events.c held; what is interned may be read at any time. */
uint32_t kit_name_intern(const char *text);
void kit_name_set_device(uint32_t type, const char *device);
uint64_t kit_names_lost(void);

/* stacks.c: with the GIL held. */
uint64_t kit_stacks_lost(void);

/* Pages for a table of the tracker's own; NULL without memory. */
void *kit_map_pages(size_t nbytes);

#endif
