/* Computation on the one thread pool of the process: see compute.c. */
enum { KIT_STATUS_INTERRUPTED = 1000 };
int kit_workers_install(void);
bool kit_pool_resize(int n_threads);
int kit_pool_threads(void);
void kit_pool_free(void);
bool kit_cpu_attach(ggml_backend_t backend);
void kit_cpu_detach(ggml_backend_t backend);
int kit_compute_scheduled(ggml_backend_sched_t scheduler, struct ggml_cgraph *graph);
int kit_compute_graph(ggml_backend_t backend, struct ggml_cgraph *graph);
void kit_interrupt(void);
void kit_before_fork(void);
void kit_forked(void);
