/* The abort guard's state and its callback; see guard.h for the trip. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdio.h>
#include <string.h>

#include "guard.h"

__thread kit_frame *kit_frame_top __attribute__((tls_model("initial-exec")));
__thread char *kit_abort_text __attribute__((tls_model("initial-exec")));
void (*kit_worker_abort)(const char *text);

static PyObject *exception_class;
static ggml_abort_callback_t previous_callback;

void kit_leave(const char *text) {
    kit_frame *frame = kit_frame_top;
    if (kit_abort_text == NULL) kit_abort_text = strdup(text);
    kit_frame_top = frame->outer;
    kit_calls_cut(frame);
    __builtin_longjmp(frame->jump, 1);
}

static void on_abort(const char *text) {
    if (kit_worker_abort) kit_worker_abort(text);
    if (kit_frame_top) kit_leave(text);
    if (previous_callback) previous_callback(text);
    else fprintf(stderr, "%s\n", text);
}

void kit_guard_install(void) {
    ggml_abort_callback_t replaced = ggml_set_abort_callback(on_abort);
    if (replaced != on_abort) previous_callback = replaced;
    kit_faults_install();
}

void kit_guard_set_exception(void *class_object) {
    Py_XINCREF((PyObject *)class_object);
    Py_XDECREF(exception_class);
    exception_class = class_object;
}

PyObject *kit_guard_raise(void) {
    char *text = kit_abort_text;
    kit_abort_text = NULL;
    const char *shown = text ? text : "ggml aborted";
    const char *file = strstr(shown, "/ggml/"); /* the build machine's folder says nothing to the reader */
    PyErr_SetString(exception_class ? exception_class : PyExc_RuntimeError, file ? file + 1 : shown);
    free(text);
    return NULL;
}

void kit_log_silent(enum ggml_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}
