/*
 * A mapped file that becomes shorter while ggml reads it.
 *
 * The system answers a read behind the end of a mapped file with SIGBUS, which ends the process.
 * 1. our handler runs on the thread that read; 2. inside a frame of ours the fault is an abort like
 * any other: a worker leaves as worker_aborted() says, a caller by kit_leave(); 3. anywhere else
 * whoever handled the signal before decides, and where nobody did, the process ends as it would have.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#include "kit_native.h"

static struct sigaction previous;

static void hand_over(int number, siginfo_t *info, void *context) {
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else {
        sigaction(number, &previous, NULL); /* a fault comes again on return, to the default action */
        if (info->si_code <= 0) raise(number); /* a signal somebody sent does not */
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    static const char text[] = "a mapped file became shorter while it was read (SIGBUS)";
    if (info->si_code != BUS_ADRERR || !kit_frame_top) {
        hand_over(number, info, context);
        return;
    }
    if (kit_worker_abort) kit_worker_abort(text);
    kit_leave(text);
}

void kit_faults_install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct sigaction current;
    sigaction(SIGBUS, NULL, &current);
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_bus_error) return;
    previous = current;
    sigaction(SIGBUS, &action, NULL);
}
