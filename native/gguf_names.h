/* The names in a GGUF header: each is text, none stands twice. */
#ifndef KIT_GGUF_NAMES_H
#define KIT_GGUF_NAMES_H

#include "gguf_reader.h"

/* Every name read so far, one after another in `bytes`; `slots` is a hash table of entry numbers + 1. */
typedef struct gguf_name {
    size_t start, length;
} gguf_name;

typedef struct gguf_names {
    char *bytes;
    size_t used, room;
    gguf_name *entries;
    size_t count, entry_room;
    uint32_t *slots;
    size_t n_slots; /* a power of two, at least twice `count` */
} gguf_names;

void kit_gguf_names_free(gguf_names *n);

/* Makes room for `needed` entries of `each` bytes by doubling; -1 where there is no memory. */
int kit_gguf_grow(void **block, size_t *room, size_t needed, size_t each);

int kit_gguf_out_of_memory(gguf_reader *r);

/* Reads the next name (8 length bytes, then the text) into the table and makes it the subject of later
   messages. `kind` is an enum kit_gguf_kind; `what` says whose limit `longest` is. 0 or the code of the
   problem. */
int kit_gguf_read_name(gguf_reader *r, gguf_names *n, int kind, size_t longest, const char *what,
                       gguf_name *entry);

#endif
