#include "gguf_names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void kit_gguf_names_free(gguf_names *n) {
    free(n->bytes);
    free(n->entries);
    free(n->slots);
    memset(n, 0, sizeof *n);
}

static uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char) text[i]) * 1099511628211u;
    return hash ^ (hash >> 29);
}

int kit_gguf_grow(void **block, size_t *room, size_t needed, size_t each) {
    if (needed <= *room) return 0;
    size_t more = *room ? *room : 256;
    while (more < needed) more *= 2;
    void *bigger = realloc(*block, more * each);
    if (bigger == NULL) return -1;
    *block = bigger;
    *room = more;
    return 0;
}

/* The slot of the text, or the empty slot where it belongs. */
static uint32_t *slot_of(gguf_names *n, const char *text, size_t length) {
    size_t at = (size_t) hash_of(text, length) & (n->n_slots - 1);
    while (n->slots[at] != 0) {
        gguf_name e = n->entries[n->slots[at] - 1];
        if (e.length == length && memcmp(n->bytes + e.start, text, length) == 0) break;
        at = (at + 1) & (n->n_slots - 1);
    }
    return &n->slots[at];
}

static int rehash(gguf_names *n) {
    size_t wanted = n->n_slots ? n->n_slots * 2 : 512;
    uint32_t *slots = calloc(wanted, sizeof *slots);
    if (slots == NULL) return -1;
    free(n->slots);
    n->slots = slots;
    n->n_slots = wanted;
    for (size_t i = 0; i < n->count; i++) {
        *slot_of(n, n->bytes + n->entries[i].start, n->entries[i].length) = (uint32_t) i + 1;
    }
    return 0;
}

/* Length of the longest prefix that is UTF-8 without NUL (Unicode standard, table 3-7). */
static size_t text_prefix(const unsigned char *s, size_t length) {
    size_t i = 0;
    while (i < length) {
        unsigned char c = s[i];
        size_t extra = 0;
        if (c == 0 || (c >= 0x80 && c < 0xC2) || c > 0xF4) return i;
        if (c >= 0xC2) extra = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        if (extra > length - i - 1) return i;
        for (size_t k = 1; k <= extra; k++) {
            unsigned char low = 0x80, high = 0xBF;
            if (k == 1 && c == 0xE0) low = 0xA0;
            if (k == 1 && c == 0xED) high = 0x9F;
            if (k == 1 && c == 0xF0) low = 0x90;
            if (k == 1 && c == 0xF4) high = 0x8F;
            if (s[i + k] < low || s[i + k] > high) return i;
        }
        i += extra + 1;
    }
    return length;
}

int kit_gguf_out_of_memory(gguf_reader *r) {
    return kit_gguf_fail(r, KIT_GGUF_MEMORY, r->at, 0, 0, "no memory for the names in the header");
}

int kit_gguf_read_name(gguf_reader *r, gguf_names *n, int kind, size_t longest, const char *what,
                       gguf_name *entry) {
    uint64_t start = r->at, length = 0;
    int bad = kit_gguf_take(r, &length, 8, "the length of a name");
    if (bad) return bad;
    if (length == 0) return kit_gguf_fail(r, KIT_GGUF_NAME, start, 1, 0, "the name is empty");
    if (length > longest && length <= kit_gguf_left(r)) {
        return kit_gguf_fail(r, KIT_GGUF_NAME, start, longest, length,
                             "the name has %" PRIu64 " bytes, %s has at most %zu", length, what, longest);
    }
    if (length > kit_gguf_left(r)) return kit_gguf_cut(r, "a name", length);
    if (kit_gguf_grow((void **) &n->bytes, &n->room, n->used + (size_t) length, 1) != 0)
        return kit_gguf_out_of_memory(r);
    if (kit_gguf_grow((void **) &n->entries, &n->entry_room, n->count + 1, sizeof *n->entries) != 0)
        return kit_gguf_out_of_memory(r);
    if (2 * (n->count + 1) > n->n_slots && rehash(n) != 0) return kit_gguf_out_of_memory(r);

    char *text = n->bytes + n->used;
    bad = kit_gguf_take(r, text, length, "a name");
    if (bad) return bad;
    kit_gguf_now_at(r, kind, (int64_t) n->count, text, (size_t) length);
    size_t good = text_prefix((const unsigned char *) text, (size_t) length);
    if (good < length) {
        return kit_gguf_fail(
            r, KIT_GGUF_NAME, start + 8 + good, 0, (unsigned char) text[good],
            "the name is not text: byte %zu of it is 0x%02x, neither UTF-8 nor allowed in a name", good,
            (unsigned char) text[good]);
    }
    uint32_t *slot = slot_of(n, text, (size_t) length);
    if (*slot != 0) {
        return kit_gguf_fail(r, KIT_GGUF_DUPLICATE, start, n->count, *slot - 1,
                             "the name stands twice in the file, as number %zu and as number %zu",
                             (size_t) (*slot - 1), n->count);
    }
    entry->start = n->used;
    entry->length = (size_t) length;
    n->entries[n->count] = *entry;
    n->used += (size_t) length;
    *slot = (uint32_t) ++n->count;
    return 0;
}
