/* Looking at chosen nodes while a graph runs: see watch.c. */
typedef struct kit_watch_item {
    struct ggml_tensor *tensor;
    void *copy_to;
    size_t nbytes;
    int call;
} kit_watch_item;
typedef struct kit_watch {
    kit_watch_item *items;
    int n_items;
    int n_seen;
    bool stop;
    void *user; /* given to the function, with the item's `call` */
} kit_watch;
bool kit_watch_callback(struct ggml_tensor *tensor, bool ask, void *watch);
void kit_watch_set_function(bool (*function)(int call, void *user));
