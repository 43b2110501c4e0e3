/* What memory costs: one timed trip a call; see costs.c. */
enum kit_pages_way {
    KIT_PAGES_MALLOC = 0,
    KIT_PAGES_MMAP = 1,
    KIT_PAGES_POPULATE = 2, /* mmap that faults everything in at once */
    KIT_PAGES_HUGE = 3,     /* huge pages asked for with madvise */
    KIT_PAGES_HUGETLB = 4,  /* huge pages the administrator reserved */
    KIT_PAGES_LOCKED = 5    /* mmap, then mlock */
};

/* Pages outside ggml. All zero: holds nothing. */
typedef struct kit_pages {
    void *base;
    size_t nbytes;
    void *mapped;        /* what munmap is told; NULL where malloc gave it */
    size_t mapped_nbytes;
    int32_t advice_error; /* errno of a madvise that was refused; the pages are ordinary ones then */
    int32_t lock_error;   /* errno of an mlock that was refused; the pages are ordinary ones then */
} kit_pages;

/* Figures of one trip. */
typedef struct kit_cost {
    int64_t alloc_ns;
    int64_t touch_ns;
    int64_t free_ns;
    int64_t faults;      /* pages the touch faulted in; the kernel counts them */
    int32_t advice_error;
    int32_t lock_error;
    char name[64];       /* ggml's name of the buffer it gave; empty where there was none */
} kit_cost;

/* Both return 0 or errno. A second kit_pages_return does nothing. */
int kit_pages_take(kit_pages *pages, int way, size_t nbytes);
void kit_pages_return(kit_pages *pages);
void kit_pages_touch(void *base, size_t nbytes);

/* Allocate, touch every page, free. Return 0 or errno. */
int kit_cost_pages(int way, size_t nbytes, kit_cost *cost);
int kit_cost_buffer(ggml_backend_buffer_type_t type, size_t nbytes, kit_cost *cost);
int kit_cost_pooled(void *region, size_t nbytes, kit_cost *cost);

/* Copies all of `tensor` from and to `host`; waits for the device. */
void kit_cost_copy(struct ggml_tensor *tensor, void *host, int64_t *to_ns, int64_t *from_ns);

/* Gives what free() kept back to the system, so that growth is counted from nothing; glibc only. */
void kit_pages_trim_heap(void);
