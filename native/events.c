/*
 * The event store: fixed-size records in chunks of mapped memory, and a table of what is live.
 *
 * It has one lock of its own, held for memory operations only: no Python, no allocator and no
 * foreign lock inside, so it may be used from any thread, in any state. fork() waits for the lock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tracking.h"

enum { CHUNK_EVENTS = 1 << 16, MAX_CHUNKS = 1 << 12, MAX_NAMES = 1 << 16, NAME_BYTES = 1 << 22, MAX_MAPPINGS = 1024 };

typedef struct {
    uint64_t key;   /* address with the kind in its highest bits; 0 for an empty place */
    uint64_t event; /* index + 1 */
} live_entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kit_event *chunks[MAX_CHUNKS];
static uint64_t n_events;
static live_entry *live;
static uint64_t live_capacity, n_live; /* a power of two */
static uint32_t *name_slots;           /* hash table of names: id, 0 for an empty place */
static uint32_t *name_offsets;
static uint32_t *name_devices;         /* of a buffer type's name: the name of its device */
static char *name_bytes;
static uint32_t n_names, name_bytes_used;
static uint64_t mappings[MAX_MAPPINGS]; /* events (index + 1) of live mappings */
static int n_mappings;
static __thread uint32_t thread_id __attribute__((tls_model("initial-exec")));

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    pthread_mutex_unlock(&lock);
    thread_id = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, in_child);
}

static void *map_pages(size_t nbytes) {
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

static uint64_t append(const kit_event *event) {
    uint64_t chunk = n_events / CHUNK_EVENTS;
    if (chunk == MAX_CHUNKS) return 0;
    if (!chunks[chunk] && !(chunks[chunk] = map_pages(CHUNK_EVENTS * sizeof(kit_event)))) return 0;
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
    live_entry *fresh = map_pages(capacity * sizeof *fresh);
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
    if (!make_live_room()) return;
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

static uint32_t intern(const char *text) {
    if (!text || !*text) return 0;
    if (!name_slots) {
        name_slots = map_pages(2 * MAX_NAMES * sizeof *name_slots);
        name_offsets = map_pages(MAX_NAMES * sizeof *name_offsets);
        name_devices = map_pages(MAX_NAMES * sizeof *name_devices);
        name_bytes = map_pages(NAME_BYTES);
        if (!name_slots || !name_offsets || !name_devices || !name_bytes) return 0;
    }
    uint64_t hash = 1469598103934665603ull;
    size_t length = 0;
    for (; text[length] && length < 255; length++) hash = (hash ^ (uint8_t)text[length]) * 1099511628211ull;
    uint32_t i = mix(hash) & (2 * MAX_NAMES - 1);
    for (; name_slots[i]; i = (i + 1) & (2 * MAX_NAMES - 1)) {
        const char *known = name_bytes + name_offsets[name_slots[i]];
        if (strncmp(known, text, length) == 0 && !known[length]) return name_slots[i];
    }
    if (n_names + 1 >= MAX_NAMES || name_bytes_used + length + 1 > NAME_BYTES) return 0;
    name_offsets[++n_names] = name_bytes_used;
    memcpy(name_bytes + name_bytes_used, text, length);
    name_bytes_used += length + 1;
    return name_slots[i] = n_names;
}

const char *kit_name_text(uint32_t name) {
    return name && name <= n_names ? name_bytes + name_offsets[name] : "";
}

const char *kit_name_device(uint32_t type) {
    return type && type <= n_names ? kit_name_text(name_devices[type]) : "";
}

static uint32_t clip(int64_t nanoseconds) {
    return nanoseconds < 0 ? 0 : nanoseconds > UINT32_MAX ? UINT32_MAX : (uint32_t)nanoseconds;
}

static void remember_mapping(uint64_t number) {
    if (n_mappings < MAX_MAPPINGS) mappings[n_mappings++] = number;
}

uint64_t kit_events_allocated(const kit_allocation *what) {
    int64_t now = kit_now_ns();
    uint64_t address = (uint64_t)(uintptr_t)what->address;
    kit_event event = {
        .time_ns = now, .address = address, .asked = what->asked, .size = what->size, .owner = what->owner,
        .duration_ns = clip(now - what->begin_ns), .thread = this_thread(), .stack = what->place.stack,
        .scope = what->place.scope, .kind = what->kind, .action = KIT_ALLOC, .copy = what->copy,
        .usage = what->by_design ? KIT_USAGE_BY_DESIGN : 0,
    };
    pthread_mutex_lock(&lock);
    event.type = intern(what->type);
    if (event.type && what->device) name_devices[event.type] = intern(what->device);
    event.name = intern(what->name);
    uint64_t number = find(what->kind, address);
    if (number && number > what->first) { /* an inner call has recorded it already; the outer one knows more */
        kit_event *inner = at(number);
        event.usage = inner->usage ? inner->usage : event.usage;
        event.name = event.name ? event.name : inner->name;
        event.label = inner->label;
        *inner = event;
    } else {
        number = append(&event);
        if (number) enter(what->kind, address, number);
        if (number && what->kind == KIT_MAPPING) remember_mapping(number);
    }
    pthread_mutex_unlock(&lock);
    return number;
}

/* With the lock held. */
static uint64_t record_free(int kind, int copy, uint64_t address, kit_place place) {
    uint64_t allocation = leave(kind, address);
    kit_event event = {
        .time_ns = kit_now_ns(), .address = address, .partner = allocation, .thread = this_thread(),
        .stack = place.stack, .scope = place.scope, .kind = kind, .copy = copy,
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

uint64_t kit_events_freed(int kind, int copy, const void *address, kit_place place) {
    pthread_mutex_lock(&lock);
    uint64_t number = record_free(kind, copy, (uint64_t)(uintptr_t)address, place);
    pthread_mutex_unlock(&lock);
    return number;
}

void kit_events_unmapped(uintptr_t begin, uint64_t size, kit_place place) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = begin + (size + page - 1) / page * page;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_mappings; i++) {
        kit_event old = *at(mappings[i]);
        uint64_t old_end = old.address + old.size;
        if (old_end <= begin || old.address >= end) continue;
        mappings[i--] = mappings[--n_mappings];
        record_free(KIT_MAPPING, old.copy, old.address, place);
        old.partner = 0;
        old.time_ns = kit_now_ns();
        uint64_t parts[2][2] = {{old.address, begin}, {end, old_end}};
        for (int p = 0; p < 2; p++) {
            if (parts[p][0] >= parts[p][1]) continue;
            old.address = parts[p][0];
            old.size = parts[p][1] - parts[p][0];
            uint64_t number = append(&old);
            if (!number) continue;
            enter(KIT_MAPPING, old.address, number);
            remember_mapping(number);
        }
    }
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
    if (number && !at(number)->name) at(number)->name = intern(name);
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

void kit_event_note(int kind, uintptr_t address, uint64_t nbytes, bool freed) {
    if (!kit_recording) return;
    kit_place place = kit_place_now();
    if (freed) {
        if (kind == KIT_MAPPING) kit_events_unmapped(address, nbytes, place);
        else kit_events_freed(kind, 0, (void *)address, place);
        return;
    }
    kit_allocation what = {.kind = kind, .address = (void *)address, .asked = nbytes, .size = nbytes,
                           .begin_ns = kit_now_ns(), .first = UINT64_MAX, .place = place};
    kit_events_allocated(&what);
}

uint64_t kit_events_count(void) {
    pthread_mutex_lock(&lock);
    uint64_t count = n_events;
    pthread_mutex_unlock(&lock);
    return count;
}

uint64_t kit_events_copy(uint64_t first, uint64_t room, kit_event *events) {
    pthread_mutex_lock(&lock);
    uint64_t done = 0;
    for (; done < room && first + done < n_events; done++) events[done] = *at(first + done + 1);
    pthread_mutex_unlock(&lock);
    return done;
}

uint64_t kit_events_live(uint64_t room, uint64_t *indices) {
    pthread_mutex_lock(&lock);
    uint64_t found = 0;
    for (uint64_t i = 0; i < live_capacity; i++)
        if (live[i].key && found++ < room) indices[found - 1] = live[i].event - 1;
    pthread_mutex_unlock(&lock);
    return found;
}

void kit_events_clear(void) {
    pthread_mutex_lock(&lock);
    for (uint64_t c = 0; c * CHUNK_EVENTS < n_events; c++) {
        munmap(chunks[c], CHUNK_EVENTS * sizeof(kit_event));
        chunks[c] = NULL;
    }
    if (live) munmap(live, live_capacity * sizeof *live);
    live = NULL;
    n_events = live_capacity = n_live = 0;
    n_mappings = 0;
    pthread_mutex_unlock(&lock);
}
