/* What the files of the allocation tracker share. */
#ifndef KIT_TRACKING_H
#define KIT_TRACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "kit_native.h"

enum { KIT_MAX_COPIES = 8 };

/* events.c */
typedef struct {
    int kind, copy;
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
uint64_t kit_events_freed(int kind, int copy, const void *address, kit_place place);
void kit_events_set_duration(uint64_t index, int64_t begin_ns);
void kit_events_set_usage(const void *buffer, int usage);
void kit_events_set_name(const void *buffer, const char *name);
/* The live allocation of `kind` at `address`: index + 1, or 0. */
uint64_t kit_events_find(int kind, const void *address);
/* Gives to `owner` what was recorded from event `first` on under `token`. */
void kit_events_adopt(uint64_t first, uint64_t token, uint64_t owner);
/* A mapping lost [begin, begin + size): what is left of it stays live under its old stack. */
void kit_events_unmapped(uintptr_t begin, uint64_t size, kit_place place);

/* hooks.c */
/* The hook of `name` for calls whose original is `original`; NULL for names that are not tracked. */
void *kit_hook_for(const char *name, void *original);
bool kit_hook_tracks(const char *name);

/* slots.c */
void kit_slots_patch(void);
void kit_slots_restore(void);
int kit_slots_patched(void);

#endif
