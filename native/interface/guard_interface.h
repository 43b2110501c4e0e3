/* The abort guard: see guard.h. */
void kit_guard_install(void);
void kit_guard_set_exception(void *exception_class);
void kit_log_silent(enum ggml_log_level level, const char *text, void *user);
