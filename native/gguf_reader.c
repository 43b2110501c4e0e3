#define _FILE_OFFSET_BITS 64
#include "gguf_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int kit_gguf_fail(gguf_reader *r, int code, uint64_t offset, uint64_t expected, uint64_t found,
                  const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->problem->text, sizeof r->problem->text, format, arguments);
    va_end(arguments);
    r->problem->code = code;
    r->problem->offset = offset;
    r->problem->expected = expected;
    r->problem->found = found;
    return code;
}

void kit_gguf_now_at(gguf_reader *r, int kind, int64_t number, const char *name, size_t length) {
    kit_gguf_problem *problem = r->problem;
    size_t room = sizeof problem->subject - 1;
    problem->kind = kind;
    problem->number = number;
    memset(problem->subject, 0, sizeof problem->subject);
    if (length > 0) memcpy(problem->subject, name, length < room ? length : room);
}

uint64_t kit_gguf_left(const gguf_reader *r) {
    return r->size - r->at;
}

int kit_gguf_cut(gguf_reader *r, const char *what, uint64_t needed) {
    return kit_gguf_fail(r, KIT_GGUF_CUT, r->at, needed, kit_gguf_left(r),
                         "the file ends inside its header: %s needs %" PRIu64 " bytes and %" PRIu64
                         " are left; the file is incomplete or damaged, copy or fetch it again",
                         what, needed, kit_gguf_left(r));
}

static int fill(gguf_reader *r) {
    ssize_t got;
    do {
        got = pread(r->fd, r->buffer, GGUF_BUFFER_BYTES, (off_t) r->at);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return kit_gguf_fail(r, KIT_GGUF_SYSTEM, r->at, 0, (uint64_t) errno, "reading failed: %s",
                             strerror(errno));
    }
    if (got == 0) {
        return kit_gguf_fail(r, KIT_GGUF_CUT, r->at, r->size, r->at,
                             "the file became shorter while it was read");
    }
    r->held_from = r->at;
    r->held = (size_t) got;
    return 0;
}

/* Copies `length` bytes, or skips them where `into` is NULL. */
int kit_gguf_take(gguf_reader *r, void *into, uint64_t length, const char *what) {
    if (length > kit_gguf_left(r)) return kit_gguf_cut(r, what, length);
    if (into == NULL) {
        r->at += length;
        return 0;
    }
    unsigned char *next = into;
    while (length > 0) {
        if (r->at < r->held_from || r->at >= r->held_from + r->held) {
            int bad = fill(r);
            if (bad) return bad;
        }
        size_t from = (size_t) (r->at - r->held_from);
        size_t step = r->held - from < length ? r->held - from : (size_t) length;
        memcpy(next, r->buffer + from, step);
        next += step;
        r->at += step;
        length -= step;
    }
    return 0;
}
