/*
 * The event store: fixed-size records in chunks of mapped memory, and a table of what is live.
 *
 * It has one lock of its own, held for memory operations only: no Python, no allocator and no
 * foreign lock inside, so it may be used from any thread, in any state. Names (names.c) are under it too.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tracking.h"

enum { CHUNK_EVENTS = 1 << 16, MAX_CHUNKS = 1 << 12 };

typedef struct {
    uint64_t key;   /* address with the kind in its highest bits; 0 for an empty place */
    uint64_t event; /* index + 1 */
} live_entry;

typedef struct {
    uint64_t begin, end, event;
} live_mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kit_event *chunks[MAX_CHUNKS];
static uint64_t n_events, room; /* records that the chunks hold */
static live_entry *live;
static uint64_t live_capacity, n_live; /* the capacity is a power of two */
static live_mapping *mappings;
static uint64_t n_mappings, mappings_room;
static uint64_t n_lost, n_unseen; /* events without room; frees that were not seen */
static __thread uint32_t thread_id __attribute__((tls_model("initial-exec")));

void kit_events_lock(void) { pthread_mutex_lock(&lock); }
void kit_events_unlock(void) { pthread_mutex_unlock(&lock); }
void kit_events_in_child(void) { thread_id = 0; }

void *kit_map_pages(size_t nbytes) {
    void *pages = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

int64_t kit_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint32_t this_thread(void) {
    if (!thread_id) thread_id = (uint32_t)syscall(SYS_gettid);
    return thread_id;
}

static kit_event *at(uint64_t number) {
    return &chunks[(number - 1) / CHUNK_EVENTS][(number - 1) % CHUNK_EVENTS];
}

/* Whether `n` more events have room, beside a free of everything that is live: that one always has. */
static bool have_room(uint64_t n) {
    for (uint64_t needed = n_events + n_live + n; room < needed; room += CHUNK_EVENTS) {
        uint64_t chunk = room / CHUNK_EVENTS;
        if (chunk == MAX_CHUNKS || !(chunks[chunk] = kit_map_pages(CHUNK_EVENTS * sizeof(kit_event)))) return false;
    }
    return true;
}

static uint64_t append(const kit_event *event) {
    n_events++;
    *at(n_events) = *event;
    return n_events;
}

static uint64_t mix(uint64_t key) {
    key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdull;
    return key ^ (key >> 29);
}

static uint64_t key_of(int kind, uint64_t address) { return address | (uint64_t)kind << 60; }

static uint64_t place_of(uint64_t key) {
    uint64_t i = mix(key) & (live_capacity - 1);
    while (live[i].key && live[i].key != key) i = (i + 1) & (live_capacity - 1);
    return i;
}

static bool make_live_room(void) {
    if ((n_live + 1) * 2 <= live_capacity) return true;
    live_entry *old = live;
    uint64_t old_capacity = live_capacity, capacity = old_capacity ? old_capacity * 2 : 1 << 14;
    live_entry *fresh = kit_map_pages(capacity * sizeof *fresh);
    if (!fresh) return false;
    live = fresh;
    live_capacity = capacity;
    for (uint64_t i = 0; i < old_capacity; i++)
        if (old[i].key) live[place_of(old[i].key)] = old[i];
    if (old) munmap(old, old_capacity * sizeof *old);
    return true;
}

static uint64_t find(int kind, uint64_t address) {
    if (!live_capacity) return 0;
    live_entry *entry = &live[place_of(key_of(kind, address))];
    return entry->key ? entry->event : 0;
}

static void enter(int kind, uint64_t address, uint64_t event) {
    live_entry *entry = &live[place_of(key_of(kind, address))];
    if (!entry->key) n_live++;
    *entry = (live_entry){key_of(kind, address), event};
}

/* Takes an entry out and moves those behind it up, so that the table has no graves. */
static uint64_t leave(int kind, uint64_t address) {
    if (!live_capacity) return 0;
    uint64_t mask = live_capacity - 1, hole = place_of(key_of(kind, address));
    if (!live[hole].key) return 0;
    uint64_t event = live[hole].event;
    for (uint64_t i = (hole + 1) & mask; live[i].key; i = (i + 1) & mask) {
        uint64_t home = mix(live[i].key) & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        live[hole] = live[i];
        hole = i;
    }
    live[hole].key = 0;
    n_live--;
    return event;
}

static uint32_t clip(int64_t nanoseconds) {
    return nanoseconds < 0 ? 0 : nanoseconds > UINT32_MAX ? UINT32_MAX : (uint32_t)nanoseconds;
}

static bool make_mapping_room(void) {
    if (n_mappings < mappings_room) return true;
    uint64_t larger = mappings_room ? 2 * mappings_room : 1024;
    live_mapping *fresh = kit_map_pages(larger * sizeof *fresh);
    if (!fresh) return false;
    if (mappings) {
        memcpy(fresh, mappings, n_mappings * sizeof *fresh);
        munmap(mappings, mappings_room * sizeof *fresh);
    }
    mappings = fresh;
    mappings_room = larger;
    return true;
}

/* With the lock held. An allocation is recorded where there is room for its free too, else not at all. */
static uint64_t record_allocation(const kit_event *event) {
    if (!have_room(2) || !make_live_room() || (event->kind == KIT_MAPPING && !make_mapping_room())) {
        n_lost++;
        return 0;
    }
    uint64_t number = append(event);
    enter(event->kind, event->address, number);
    if (event->kind == KIT_MAPPING)
        mappings[n_mappings++] = (live_mapping){event->address, event->address + event->size, number};
    return number;
}

/* With the lock held. */
static uint64_t record_free(int kind, int library, uint64_t address, kit_place place) {
    uint64_t allocation = leave(kind, address);
    if (!allocation && !have_room(1)) {
        n_lost++;
        return 0;
    }
    kit_event event = {
        .time_ns = kit_now_ns(), .address = address, .partner = allocation, .thread = this_thread(),
        .stack = place.stack, .scope = place.scope, .kind = kind, .copy = library,
        .action = allocation ? KIT_FREE : KIT_FREE_OF_OLDER,
    };
    if (allocation) {
        const kit_event *begun = at(allocation);
        event.size = begun->size;
        event.asked = begun->asked;
        event.owner = begun->owner;
        event.type = begun->type;
        event.label = begun->label;
        event.name = begun->name;
        event.usage = begun->usage;
    }
    uint64_t number = append(&event);
    if (allocation) at(allocation)->partner = number;
    return number;
}

/* With the lock held. */
static void unmap(uint64_t begin, uint64_t end, kit_place place) {
    for (uint64_t i = 0; i < n_mappings; i++) {
        live_mapping old = mappings[i];
        if (old.end <= begin || old.begin >= end) continue;
        mappings[i--] = mappings[--n_mappings];
        kit_event rest = *at(old.event);
        record_free(KIT_MAPPING, rest.copy, old.begin, place);
        rest.partner = 0;
        rest.time_ns = kit_now_ns();
        uint64_t parts[2][2] = {{old.begin, begin}, {end, old.end}};
        for (int p = 0; p < 2; p++) {
            if (parts[p][0] >= parts[p][1]) continue;
            rest.address = parts[p][0];
            rest.size = parts[p][1] - parts[p][0];
            record_allocation(&rest);
        }
    }
}

/* With the lock held: what lies where something new is now was freed in a way that no hook saw. */
static void free_unseen(int kind, uint64_t address, uint64_t size) {
    if (kind == KIT_MAPPING) {
        unmap(address, address + size, (kit_place){0});
        return;
    }
    uint64_t number = find(kind, address);
    if (!number) return;
    record_free(kind, at(number)->copy, address, (kit_place){0});
    n_unseen++;
}

uint64_t kit_events_allocated(const kit_allocation *what) {
    int64_t now = kit_now_ns();
    uint64_t address = (uint64_t)(uintptr_t)what->address;
    kit_event event = {
        .time_ns = now, .address = address, .asked = what->asked, .size = what->size, .owner = what->owner,
        .duration_ns = clip(now - what->begin_ns), .thread = this_thread(), .stack = what->place.stack,
        .scope = what->place.scope, .kind = what->kind, .action = KIT_ALLOC, .copy = what->library,
        .usage = what->by_design ? KIT_USAGE_BY_DESIGN : 0,
    };
    pthread_mutex_lock(&lock);
    event.type = kit_name_intern(what->type);
    if (what->device) kit_name_set_device(event.type, what->device);
    event.name = kit_name_intern(what->name);
    uint64_t number = find(what->kind, address);
    if (number && number > what->first) { /* an inner call has recorded it already; the outer one knows more */
        kit_event *inner = at(number);
        event.usage = inner->usage ? inner->usage : event.usage;
        event.name = event.name ? event.name : inner->name;
        event.label = inner->label;
        *inner = event;
    } else {
        free_unseen(what->kind, address, what->size);
        number = record_allocation(&event);
    }
    pthread_mutex_unlock(&lock);
    return number;
}

uint64_t kit_events_freed(int kind, int library, const void *address, kit_place place) {
    pthread_mutex_lock(&lock);
    uint64_t number = record_free(kind, library, (uint64_t)(uintptr_t)address, place);
    pthread_mutex_unlock(&lock);
    return number;
}

void kit_events_unmapped(uintptr_t begin, uint64_t size, kit_place place) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_lock(&lock);
    unmap(begin, begin + (size + page - 1) / page * page, place);
    pthread_mutex_unlock(&lock);
}

void kit_events_set_duration(uint64_t number, int64_t begin_ns) {
    if (!number) return;
    uint32_t duration = clip(kit_now_ns() - begin_ns);
    pthread_mutex_lock(&lock);
    if (number <= n_events) at(number)->duration_ns = duration;
    pthread_mutex_unlock(&lock);
}

void kit_events_set_usage(const void *buffer, int usage) {
    pthread_mutex_lock(&lock);
    uint64_t number = find(KIT_BUFFER, (uint64_t)(uintptr_t)buffer);
    if (number) at(number)->usage = (uint8_t)(usage + 1);
    pthread_mutex_unlock(&lock);
}

void kit_events_set_name(const void *buffer, const char *name) {
    pthread_mutex_lock(&lock);
    uint64_t number = find(KIT_BUFFER, (uint64_t)(uintptr_t)buffer);
    if (number && !at(number)->name) at(number)->name = kit_name_intern(name);
    pthread_mutex_unlock(&lock);
}

uint64_t kit_events_find(int kind, const void *address) {
    pthread_mutex_lock(&lock);
    uint64_t number = find(kind, (uint64_t)(uintptr_t)address);
    pthread_mutex_unlock(&lock);
    return number;
}

void kit_events_adopt(uint64_t first, uint64_t token, uint64_t owner) {
    pthread_mutex_lock(&lock);
    for (uint64_t number = first + 1; number <= n_events; number++)
        if (at(number)->owner == token) at(number)->owner = owner;
    pthread_mutex_unlock(&lock);
}

void kit_event_label(int kind, uintptr_t address, uint32_t label) {
    pthread_mutex_lock(&lock);
    uint64_t number = find(kind, address);
    if (number) at(number)->label = label;
    pthread_mutex_unlock(&lock);
}

void kit_event_note(int kind, uintptr_t address, uint64_t nbytes, const char *type, bool freed) {
    if (!kit_recording) return;
    kit_place place = kit_place_now();
    if (freed) {
        pthread_mutex_lock(&lock);
        if (kind == KIT_MAPPING) unmap(address, address + nbytes, place);
        else record_free(kind, 0, address, place);
        pthread_mutex_unlock(&lock);
        return;
    }
    kit_allocation what = {.kind = kind, .address = (void *)address, .asked = nbytes, .size = nbytes, .type = type,
                           .begin_ns = kit_now_ns(), .first = UINT64_MAX, .place = place};
    kit_events_allocated(&what);
}

void kit_events_losses(kit_losses *losses) {
    pthread_mutex_lock(&lock);
    losses->events = n_lost;
    losses->frees = n_unseen;
    losses->names = kit_names_lost();
    pthread_mutex_unlock(&lock);
}

uint64_t kit_events_count(void) {
    pthread_mutex_lock(&lock);
    uint64_t count = n_events;
    pthread_mutex_unlock(&lock);
    return count;
}

uint64_t kit_events_copy(uint64_t first, uint64_t most, kit_event *events) {
    pthread_mutex_lock(&lock);
    uint64_t done = 0;
    for (; done < most && first + done < n_events; done++) events[done] = *at(first + done + 1);
    pthread_mutex_unlock(&lock);
    return done;
}

void kit_events_clear(void) {
    pthread_mutex_lock(&lock);
    for (uint64_t c = 0; c < room / CHUNK_EVENTS; c++) {
        munmap(chunks[c], CHUNK_EVENTS * sizeof(kit_event));
        chunks[c] = NULL;
    }
    if (live) munmap(live, live_capacity * sizeof *live);
    if (mappings) munmap(mappings, mappings_room * sizeof *mappings);
    live = NULL;
    mappings = NULL;
    n_events = room = live_capacity = n_live = n_mappings = mappings_room = 0;
    pthread_mutex_unlock(&lock);
}
