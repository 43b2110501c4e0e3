/* Reads an untrusted file front to back and knows, for every message, where in it we are. */
#ifndef KIT_GGUF_READER_H
#define KIT_GGUF_READER_H

#include <stddef.h>
#include <stdint.h>

#include "interface/gguf_check.h"

enum { GGUF_BUFFER_BYTES = 1 << 16 };

typedef struct gguf_reader {
    int fd;
    uint64_t size;      /* of the file */
    uint64_t at;        /* next byte to be read */
    uint64_t held_from; /* file offset of buffer[0] */
    size_t held;        /* bytes in buffer */
    kit_gguf_problem *problem;
    unsigned char buffer[GGUF_BUFFER_BYTES];
} gguf_reader;

/* Fills in the problem (its subject is set by kit_gguf_now_at) and returns `code`. */
int kit_gguf_fail(gguf_reader *r, int code, uint64_t offset, uint64_t expected, uint64_t found,
                  const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Fails because `what` needs more bytes than the file has left. */
int kit_gguf_cut(gguf_reader *r, const char *what, uint64_t needed);

/* Says which key or tensor (enum kit_gguf_kind) is being read, for later messages. */
void kit_gguf_now_at(gguf_reader *r, int kind, int64_t number, const char *name, size_t length);

/* Bytes of the file not yet read. */
uint64_t kit_gguf_left(const gguf_reader *r);

/* Copies the next `length` bytes, or skips them where `into` is NULL; 0 or the code of the problem. */
int kit_gguf_take(gguf_reader *r, void *into, uint64_t length, const char *what);

#endif
