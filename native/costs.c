/*
 * What memory costs, measured where no interpreter stands between the clock and the kernel.
 *
 * Each kit_cost_* call is one trip (allocate, write a byte to each page, free), so that Python can
 * stop between two of them; it holds nothing when it returns. Page faults are counted beside the
 * times: they tell where pages were really touched first, which a busy machine's clock does not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "kit_native.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t faults_of_thread(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_minflt + usage.ru_majflt;
}

static size_t round_up(size_t nbytes, size_t unit) {
    return (nbytes + unit - 1) / unit * unit;
}

void kit_pages_touch(void *base, size_t nbytes) {
    volatile char *bytes = base; /* volatile: else the compiler drops writes nobody reads */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < nbytes; i += page) bytes[i] = 1;
}

static int map(kit_pages *pages, size_t nbytes, int flags) {
    void *mapped = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (mapped == MAP_FAILED) return errno;
    pages->base = pages->mapped = mapped;
    pages->mapped_nbytes = nbytes;
    return 0;
}

/* The kernel gives a huge page only for a whole aligned one: map one more, start at its border. */
static int map_huge(kit_pages *pages, size_t nbytes) {
    size_t whole = round_up(nbytes, HUGE_PAGE);
    int error = map(pages, whole + HUGE_PAGE, 0);
    if (error) return error;
    pages->base = (void *)round_up((size_t)pages->mapped, HUGE_PAGE);
    if (madvise(pages->base, whole, MADV_HUGEPAGE)) pages->advice_error = errno;
    return 0;
}

int kit_pages_take(kit_pages *pages, int way, size_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int error = 0;
    if (nbytes == 0 || nbytes > SIZE_MAX / 4) return EINVAL;
    memset(pages, 0, sizeof *pages);
    switch (way) {
    case KIT_PAGES_MALLOC:
        pages->base = malloc(nbytes);
        error = pages->base ? 0 : ENOMEM;
        break;
    case KIT_PAGES_MMAP:
    case KIT_PAGES_LOCKED: error = map(pages, round_up(nbytes, page), 0); break;
    case KIT_PAGES_POPULATE: error = map(pages, round_up(nbytes, page), MAP_POPULATE); break;
    case KIT_PAGES_HUGE: error = map_huge(pages, nbytes); break;
    case KIT_PAGES_HUGETLB: error = map(pages, round_up(nbytes, HUGE_PAGE), MAP_HUGETLB); break;
    default: error = EINVAL;
    }
    if (error) return error;
    pages->nbytes = nbytes;
    if (way == KIT_PAGES_LOCKED && mlock(pages->mapped, pages->mapped_nbytes)) pages->lock_error = errno;
    return 0;
}

void kit_pages_return(kit_pages *pages) {
    if (pages->mapped) munmap(pages->mapped, pages->mapped_nbytes); /* unlocks as well */
    else free(pages->base);
    memset(pages, 0, sizeof *pages);
}

static void touch_timed(void *base, size_t nbytes, kit_cost *cost) {
    int64_t faults = faults_of_thread(), start = now_ns();
    kit_pages_touch(base, nbytes);
    cost->touch_ns = now_ns() - start;
    cost->faults = faults_of_thread() - faults;
}

int kit_cost_pages(int way, size_t nbytes, kit_cost *cost) {
    kit_pages pages;
    memset(cost, 0, sizeof *cost);
    int64_t start = now_ns();
    int error = kit_pages_take(&pages, way, nbytes);
    cost->alloc_ns = now_ns() - start;
    if (error) return error;
    cost->advice_error = pages.advice_error;
    cost->lock_error = pages.lock_error;
    touch_timed(pages.base, nbytes, cost);
    start = now_ns();
    kit_pages_return(&pages);
    cost->free_ns = now_ns() - start;
    return 0;
}

static void buffer_trip_ends(ggml_backend_buffer_t buffer, kit_cost *cost) {
    strncpy(cost->name, ggml_backend_buffer_name(buffer), sizeof cost->name - 1);
    int64_t start = now_ns();
    ggml_backend_buffer_free(buffer);
    cost->free_ns = now_ns() - start;
}

int kit_cost_buffer(ggml_backend_buffer_type_t type, size_t nbytes, kit_cost *cost) {
    memset(cost, 0, sizeof *cost);
    int64_t start = now_ns();
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, nbytes);
    cost->alloc_ns = now_ns() - start;
    if (!buffer) return ENOMEM;
    if (ggml_backend_buffer_is_host(buffer)) {
        touch_timed(ggml_backend_buffer_get_base(buffer), nbytes, cost);
    } else { /* the CPU cannot write there: the device clears it */
        start = now_ns();
        ggml_backend_buffer_clear(buffer, 0);
        cost->touch_ns = now_ns() - start;
    }
    buffer_trip_ends(buffer, cost);
    return 0;
}

int kit_cost_pooled(void *region, size_t nbytes, kit_cost *cost) {
    memset(cost, 0, sizeof *cost);
    int64_t start = now_ns();
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(region, nbytes);
    cost->alloc_ns = now_ns() - start;
    if (!buffer) return ENOMEM;
    touch_timed(ggml_backend_buffer_get_base(buffer), nbytes, cost);
    buffer_trip_ends(buffer, cost);
    return 0;
}

void kit_cost_copy(struct ggml_tensor *tensor, void *host, int64_t *to_ns, int64_t *from_ns) {
    size_t nbytes = ggml_nbytes(tensor);
    int64_t start = now_ns();
    ggml_backend_tensor_set(tensor, host, 0, nbytes);
    int64_t middle = now_ns();
    ggml_backend_tensor_get(tensor, host, 0, nbytes);
    *from_ns = now_ns() - middle;
    *to_ns = middle - start;
}

void kit_pages_trim_heap(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
