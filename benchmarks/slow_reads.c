/*
 * Preloaded into a process: every read of one file takes KIT_SLOW_US microseconds longer, as on a disk far away.
 * KIT_SLOW_FILE is the end of the file's path. Reads at an offset only; nothing is done to other files.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void wait_for(int descriptor) {
    const char *end = getenv("KIT_SLOW_FILE"), *us = getenv("KIT_SLOW_US");
    char link[64], path[4096];
    if (!end || !us) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path);
    size_t wanted = strlen(end);
    if (length < (ssize_t)wanted || memcmp(path + length - wanted, end, wanted)) return;
    long left = atol(us);
    struct timespec pause = {left / 1000000, left % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

#define SLOW(name, parameters, arguments)                                                  \
    ssize_t name parameters {                                                              \
        static ssize_t(*real) parameters;                                                  \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                              \
        wait_for(descriptor);                                                              \
        return real arguments;                                                             \
    }

SLOW(pread, (int descriptor, void *to, size_t size, off_t at), (descriptor, to, size, at))
SLOW(pread64, (int descriptor, void *to, size_t size, off64_t at), (descriptor, to, size, at))
SLOW(preadv, (int descriptor, const struct iovec *to, int count, off_t at), (descriptor, to, count, at))
SLOW(preadv64, (int descriptor, const struct iovec *to, int count, off64_t at), (descriptor, to, count, at))
SLOW(preadv2, (int descriptor, const struct iovec *to, int count, off_t at, int flags), (descriptor, to, count, at, flags))
SLOW(preadv64v2, (int descriptor, const struct iovec *to, int count, off64_t at, int flags),
     (descriptor, to, count, at, flags))
