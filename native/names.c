/*
 * Names of tensors, buffer types and devices, each kept once and for ever under a number of its own.
 *
 * Texts and entries never move, so that a number may be looked up without a lock; only the hash table does.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "tracking.h"

enum { TEXT_BYTES = 1 << 20, MOST_BYTES = 255, CHUNK = 1 << 14, MAX_CHUNKS = 1 << 10, FIRST_SLOTS = 1 << 12 };

typedef struct {
    const char *text;
    uint32_t device; /* of a buffer type: the name of its device */
} entry;

static entry *chunks[MAX_CHUNKS];
static uint32_t *slots; /* hash table of numbers; 0 for an empty place */
static uint32_t n_slots;
static _Atomic uint32_t n_names;
static char *texts; /* where the next text goes */
static size_t texts_left;
static _Atomic uint64_t n_lost;

static entry *at(uint32_t name) { return &chunks[name / CHUNK][name % CHUNK]; }

static uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = 1469598103934665603ull;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211ull;
    hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdull;
    return hash ^ (hash >> 29);
}

static uint32_t slot_of(const char *text, size_t length) {
    uint32_t i = hash_of(text, length) & (n_slots - 1);
    for (; slots[i]; i = (i + 1) & (n_slots - 1)) {
        const char *known = at(slots[i])->text;
        if (strncmp(known, text, length) == 0 && !known[length]) break;
    }
    return i;
}

static bool make_slots(void) {
    if ((n_names + 1) * 2 <= n_slots) return true;
    uint32_t *old = slots, n_old = n_slots, n_fresh = n_old ? 2 * n_old : FIRST_SLOTS;
    uint32_t *fresh = kit_map_pages(n_fresh * sizeof *fresh);
    if (!fresh) return false;
    slots = fresh;
    n_slots = n_fresh;
    for (uint32_t name = 1; name <= n_names; name++) slots[slot_of(at(name)->text, strlen(at(name)->text))] = name;
    if (old) munmap(old, n_old * sizeof *old);
    return true;
}

static bool make_room(size_t length) {
    uint32_t chunk = (n_names + 1) / CHUNK;
    if (chunk == MAX_CHUNKS) return false;
    if (!chunks[chunk] && !(chunks[chunk] = kit_map_pages(CHUNK * sizeof(entry)))) return false;
    if (texts_left > length) return true;
    char *fresh = kit_map_pages(TEXT_BYTES);
    if (!fresh) return false;
    texts = fresh;
    texts_left = TEXT_BYTES;
    return true;
}

uint32_t kit_name_intern(const char *text) {
    if (!text || !*text) return 0;
    size_t length = strnlen(text, MOST_BYTES);
    bool more = make_slots();
    uint32_t slot = slots ? slot_of(text, length) : 0;
    if (slots && slots[slot]) return slots[slot];
    if (!more || !make_room(length)) {
        n_lost++;
        return 0;
    }
    memcpy(texts, text, length); /* fresh pages: the zero behind it is there */
    *at(n_names + 1) = (entry){texts, 0};
    texts += length + 1;
    texts_left -= length + 1;
    n_names++;
    return slots[slot] = n_names;
}

void kit_name_set_device(uint32_t type, const char *device) {
    if (type) at(type)->device = kit_name_intern(device);
}

uint64_t kit_names_lost(void) { return n_lost; }

const char *kit_name_text(uint32_t name) {
    return name && name <= n_names ? at(name)->text : "";
}

const char *kit_name_device(uint32_t type) {
    return type && type <= n_names ? kit_name_text(at(type)->device) : "";
}
