"""Running allocated graphs on the one thread pool of the process.

Computations take turns: ggml's pool serves one graph at a time. A watcher that computes something
of its own between two nodes does so on the same thread, inside the same turn.
"""

from __future__ import annotations

import atexit
import os
import statistics
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kit.core.native import lib
from kit.errors import BusyError, GgmlAbort, OutOfMemory

Turn = AbstractContextManager[Any]
_turn = threading.RLock()


def _before_fork() -> None:
    """Wait for the running computation, and free the pool: a child would inherit its locks without its threads."""
    _turn.acquire()
    lib.kit_before_fork()


def _after_fork_in_child() -> None:
    global _turn
    _turn = threading.RLock()
    running.clear()
    lib.kit_forked()


os.register_at_fork(before=_before_fork, after_in_parent=_turn.release, after_in_child=_after_fork_in_child)


def default_threads() -> int:
    """Return a thread count for this process now: its free CPUs, at most one per physical core, at most 16.

    CPUs on which others are running are left out: ggml's threads wait for each other by spinning, and on a CPU
    they have to share a pass takes ten times as long as on one thread.
    """
    allowed = os.sched_getaffinity(0)
    cores = {_core_of(cpu) for cpu in allowed}
    free = (os.cpu_count() or 1) - _others_running()
    return max(1, min(len(cores), _quota(len(allowed)), free, 16))


def turn() -> Turn:
    """Return the process's turn to compute, to be entered: nobody else allocates, computes or frees in the meantime.

    Whoever reads results out of a compute buffer holds it from before the computation until they are read.
    """
    return _turn  # the lock itself: an interrupt between a Python __enter__ and the body would keep it for ever


#: graphs being computed, outermost first; whoever looks holds the turn, so they are this thread's
running: list[Any] = []


def refuse_running(concerns: Callable[[Any], bool], what: str) -> None:
    """Raise BusyError when a computation that called this function uses what is about to be freed."""
    if any(concerns(graph) for graph in running):
        raise BusyError(f"{what} is used by the computation that called this function; do it afterwards")


def compute_scheduled(scheduler: Any, graph: Any, n_threads: int) -> None:
    """Compute ``graph``, allocated by ``scheduler``.

    Raises:
        GgmlAbort: ggml refused inside the graph; the thread pool has been made anew.
        KeyboardInterrupt: interrupted; the graph stopped between two nodes or was cut out of one.
    """
    with _turn:
        _ensure_pool(n_threads)
        _check(lib.kit_compute_scheduled(scheduler, graph))


def compute_graph(backend: Any, graph: Any, n_threads: int) -> None:
    """Compute ``graph``, allocated by other means, on one ggml backend; raises as `compute_scheduled`."""
    with _turn:
        _ensure_pool(n_threads)
        _check(lib.kit_compute_graph(backend, graph))


def interrupt() -> None:
    """End the running computation after the node it is at, from any thread."""
    lib.kit_interrupt()


def _shut_down() -> None:
    """Stop the computation of a daemon thread, and keep the turn: what exit handlers free is then in nobody's use."""
    global _ending
    _ending = True
    deadline = time.monotonic() + 10
    while not (taken := _turn.acquire(timeout=0.05)) and time.monotonic() < deadline:
        lib.kit_interrupt()
    if taken:
        lib.kit_pool_free()  # a live pool crashes inside ggml's own exit handlers


_ending = False
weakref.finalize(threading.current_thread(), int)  # weakref's exit handler is there from here on, so ours runs before
atexit.register(_shut_down)


def _ensure_pool(n_threads: int) -> None:
    if lib.kit_pool_threads() < n_threads and not lib.kit_pool_resize(n_threads):
        raise OutOfMemory(f"no thread pool of {n_threads} threads could be made")


def _check(status: int) -> None:
    if status == lib.GGML_STATUS_SUCCESS:
        return
    if status in (lib.GGML_STATUS_ABORTED, lib.KIT_STATUS_INTERRUPTED):
        if _ending and threading.current_thread() is not threading.main_thread():
            raise SystemExit("the interpreter is ending")  # a thread ends of it without a word
        raise KeyboardInterrupt("the computation was interrupted")
    if status == lib.GGML_STATUS_ALLOC_FAILED:
        raise OutOfMemory("ggml could not allocate what the graph needs")
    raise GgmlAbort(f"the computation ended with ggml's status {status}")


def _core_of(cpu: int) -> tuple[str, str]:
    base = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
    try:
        with open(base + "physical_package_id") as package, open(base + "core_id") as core:
            return package.read().strip(), core.read().strip()
    except OSError:
        return "", str(cpu)


def _others_running(samples: int = 5) -> int:
    """Threads of others that run or want to run on this machine; the median of a few looks."""
    seen = []
    try:
        for _ in range(samples):
            with open("/proc/loadavg", encoding="ascii") as file:
                seen.append(int(file.read().split()[3].split("/")[0]) - 1)
            time.sleep(0.0005)
    except (OSError, ValueError, IndexError):
        return 0
    return max(0, statistics.median_low(seen))


def _quota(fallback: int) -> int:
    """CPUs that the container's quota allows, rounded down, at least one."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return fallback if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return fallback
