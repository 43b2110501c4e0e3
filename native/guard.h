/*
 * ggml aborts become Python exceptions.
 *
 * ggml_abort() calls the callback set with ggml_set_abort_callback() and then abort(). Our callback
 * does not return: it jumps to the innermost frame, which cffi's wrapper opened just before
 * the call. 1. the wrapper pushes a frame; 2. ggml runs, and perhaps aborts; 3. the callback
 * jumps back, on the same thread; 4. the wrapper raises kit.GgmlAbort with ggml's own text.
 */
#ifndef KIT_GUARD_H
#define KIT_GUARD_H

#include "kit_native.h"

PyObject *kit_guard_raise(void);

#define KIT_GUARD_KEEPING_GIL                                                                      \
    {                                                                                              \
        kit_frame frame_;                                                                          \
        frame_.outer = kit_frame_top;                                                              \
        if (__builtin_setjmp(frame_.jump) == 0) {                                                  \
            kit_frame_top = &frame_;

#define KIT_UNGUARD_KEEPING_GIL                                                                    \
            kit_frame_top = frame_.outer;                                                          \
        }                                                                                          \
        if (__builtin_expect(kit_abort_text != NULL, 0)) return kit_guard_raise();                 \
    }

#define KIT_GUARD_RELEASING_GIL                                                                    \
    {                                                                                              \
        kit_frame frame_;                                                                          \
        frame_.place = kit_place_noted;                                                            \
        if (__builtin_expect(kit_recording, 0)) kit_place_noted = kit_place_here();                \
        PyThreadState *volatile saved_ = PyEval_SaveThread();                                      \
        frame_.outer = kit_frame_top;                                                              \
        if (__builtin_setjmp(frame_.jump) == 0) {                                                  \
            kit_frame_top = &frame_;

#define KIT_UNGUARD_RELEASING_GIL                                                                  \
            kit_frame_top = frame_.outer;                                                          \
        }                                                                                          \
        PyEval_RestoreThread(saved_);                                                              \
        kit_place_noted = frame_.place;                                                            \
        if (__builtin_expect(kit_abort_text != NULL, 0)) return kit_guard_raise();                 \
    }

#endif
