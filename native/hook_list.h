/*
 * The functions of ggml that are tracked: X(copy, result, name, parameters, arguments);
 * `copy` is handed through.
 *
 * Pointers to ggml's structs are void * here, because other copies in the process have other versions of
 * them. A parameter that an older version lacks is passed to it in vain, and does no harm.
 */
#define KIT_TRACKED(X, copy)                                                                                    \
    X(copy, void *, ggml_init, (struct ggml_init_params params), (params))                                      \
    X(copy, void, ggml_free, (void *context), (context))                                                        \
    X(copy, void *, ggml_backend_buft_alloc_buffer, (void *type, size_t size), (type, size))                    \
    X(copy, void, ggml_backend_buffer_free, (void *buffer), (buffer))                                           \
    X(copy, void, ggml_backend_buffer_set_usage, (void *buffer, int usage), (buffer, usage))                    \
    X(copy, void *, ggml_backend_multi_buffer_alloc_buffer, (void **buffers, size_t n), (buffers, n))           \
    X(copy, void *, ggml_backend_cpu_buffer_from_ptr, (void *pointer, size_t size), (pointer, size))            \
    X(copy, void *, ggml_backend_dev_buffer_from_host_ptr, (void *device, void *pointer, size_t size, size_t max),\
      (device, pointer, size, max))                                                                             \
    X(copy, void *, ggml_backend_alloc_ctx_tensors_from_buft, (void *context, void *type), (context, type))     \
    X(copy, void *, ggml_backend_alloc_ctx_tensors, (void *context, void *backend), (context, backend))         \
    X(copy, void *, ggml_gallocr_new, (void *type), (type))                                                     \
    X(copy, void *, ggml_gallocr_new_n, (void **types, int n), (types, n))                                      \
    X(copy, void, ggml_gallocr_free, (void *allocator), (allocator))                                            \
    X(copy, bool, ggml_gallocr_reserve, (void *allocator, void *graph), (allocator, graph))                     \
    X(copy, bool, ggml_gallocr_reserve_n, (void *allocator, void *graph, const int *nodes, const int *leafs),   \
      (allocator, graph, nodes, leafs))                                                                         \
    X(copy, bool, ggml_gallocr_alloc_graph, (void *allocator, void *graph), (allocator, graph))                 \
    X(copy, void *, ggml_backend_sched_new,                                                                     \
      (void **backends, void **types, int n, size_t graph_size, bool parallel, bool offload),                   \
      (backends, types, n, graph_size, parallel, offload))                                                      \
    X(copy, void, ggml_backend_sched_free, (void *scheduler), (scheduler))                                      \
    X(copy, bool, ggml_backend_sched_reserve, (void *scheduler, void *graph), (scheduler, graph))               \
    X(copy, bool, ggml_backend_sched_alloc_graph, (void *scheduler, void *graph), (scheduler, graph))           \
    X(copy, void *, ggml_aligned_malloc, (size_t size), (size))                                                 \
    X(copy, void, ggml_aligned_free, (void *pointer, size_t size), (pointer, size))

/* Getters that the hooks themselves call, in the copy they stand for. */
#define KIT_ASKED(X)                                                          \
    X(const char *, ggml_backend_buft_name, (void *type))                     \
    X(const char *, ggml_backend_buffer_name, (void *buffer))                 \
    X(size_t, ggml_backend_buffer_get_size, (void *buffer))                   \
    X(void *, ggml_backend_buffer_get_type, (void *buffer))                   \
    X(void *, ggml_backend_buft_get_device, (void *type))                     \
    X(const char *, ggml_backend_dev_name, (void *device))                    \
    X(size_t, ggml_get_mem_size, (void *context))                             \
    X(void *, ggml_get_first_tensor, (void *context))                         \
    X(const char *, ggml_get_name, (void *tensor))
