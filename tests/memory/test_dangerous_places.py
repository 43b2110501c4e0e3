"""Trackers in threads, callbacks, forked children and at the end of the interpreter: nothing hangs, nothing dies."""

from __future__ import annotations

import pytest

HEAD = """
import os, sys, threading, atexit, gc
import numpy as np
import kit, kit.memory
backend = kit.Backend(n_threads=2)
def clean():
    with kit.Context(backend) as ctx:
        ctx.input((100,), "f32", name="x").set(np.zeros(100, np.float32))
"""

PROGRAMS = {
    "trackers come and go in threads while others allocate": """
stop = threading.Event()
def allocate():
    while not stop.is_set():
        clean()
def track():
    for _ in range(40):
        with kit.Tracker() as mem:
            clean()
        assert mem.report().peak > 0
workers = [threading.Thread(target=allocate) for _ in range(3)]
trackers = [threading.Thread(target=track) for _ in range(3)]
for t in workers + trackers: t.start()
for t in trackers: t.join()
stop.set()
for t in workers: t.join()
""",
    "a tracker within a callback of a computation": """
from kit.core.watch import Watch, Watched
ctx = kit.Context(backend)
x = ctx.input((8, 8), "f32", name="x")
y = x @ x.T
graph = ctx.graph(y)
seen = []
def look(tensor):
    with kit.Tracker() as mem:
        clean()
    seen.append(len(mem.report().events))
x.set(np.ones((8, 8), np.float32))
with kit.Tracker() as outer:
    watch = Watch([Watched(y, call=look)])
    for _ in range(20):
        watch.compute(graph)
    ctx.close()
    backend.close()
assert seen == [4] * 20, seen
left = [leak for leak in outer.report().leaks if "context" not in leak.kind]
assert left == [], left
""",
    "forked children track on, and on their own": """
from kit.core.native import ffi, lib
stop = threading.Event()
def allocate():
    while not stop.is_set():
        clean()
worker = threading.Thread(target=allocate)
with kit.Tracker() as mem:
    worker.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            for _ in range(5):
                with kit.Tracker() as inner:
                    pass
            lib.ggml_free(lib.ggml_init({"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True}))
            mem.report()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    worker.join()
mem.report().text()
""",
    "a tracker that is never ended, with threads that go on": """
from kit.core.native import ffi, lib
def allocate():
    while True:
        lib.ggml_free(lib.ggml_init({"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True}))
for _ in range(3):
    threading.Thread(target=allocate, daemon=True).start()
tracker = kit.Tracker().start()
kept = kit.Context(backend)
kept.input((100,), "f32").set(np.zeros(100, np.float32))
atexit.register(lambda: print(tracker.report().peak > 0, flush=True))
class AtTheEnd:
    def __del__(self):
        kept.close()
end = AtTheEnd()
""",
    "garbage with finalizers is collected between events": """
import weakref
class Cycle:
    def __init__(self):
        self.me = self
        self.ctx = kit.Context(backend)
        self.ctx.input((100,), "f32").set(np.zeros(100, np.float32))
gc.set_threshold(5, 2, 2)
with kit.Tracker() as mem:
    for _ in range(2000):
        Cycle()
    gc.collect()
assert mem.report().leaks == [], mem.report().leaks
""",
    "trackers used by finalizers and signal handlers in the middle of others": """
from kit.core import scope
room = os.path.join(os.path.dirname(kit.__file__), "memory")
lines, inner = set(), []
def use():
    with kit.Tracker() as mem, kit.memory.region("inner"):
        clean()
    inner.append(len(mem.report().events))
    kit.memory.live()
def look(frame, event, argument):
    if not frame.f_code.co_filename.startswith(room):
        return None
    here = (frame.f_code.co_filename, frame.f_lineno)
    if event == "line" and here not in lines:
        lines.add(here)  # comes as a handler would, between two lines; tracing is off in here
        use()
    return look
use()
sys.settrace(look)
with kit.Tracker() as mem:
    clean()
sys.settrace(None)
with kit.Tracker() as after:
    clean()
assert len(lines) > 60 and set(inner) == {4}, (len(lines), inner)
assert len(after.report().events) == 4
assert scope.scope("nobody tracks") is scope.scope("any more")
""",
    "children forked while a thread is anywhere in a tracker": """
import signal
places = tuple(os.path.join(os.path.dirname(kit.__file__), *part) for part in (("memory", ""), ("core", "ledger.py")))
ask, done, lines = threading.Semaphore(0), threading.Semaphore(0), set()
def work():
    with kit.Tracker() as mem:
        clean()
    assert mem.report().leaks == []
    kit.memory.live()
def look(frame, event, argument):
    if not frame.f_code.co_filename.startswith(places):
        return None
    here = (frame.f_code.co_filename, frame.f_lineno)
    if event == "line" and here not in lines:
        lines.add(here)
        ask.release()
        done.acquire(timeout=0.1)  # no longer: a fork may wait for what we hold
    return look
def traced():
    sys.settrace(look)
    work()
    sys.settrace(None)
    lines.add("all")
    ask.release()
work()
thread = threading.Thread(target=traced)
thread.start()
while True:
    ask.acquire()
    if "all" in lines:
        break
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # it ends the child, if something in there waits for a thread that is not there
        work()
        os._exit(0)
    done.release()
    assert os.waitpid(child, 0)[1] == 0, lines
thread.join()
assert len(lines) > 60
""",
    "aborts by the thousand": """
from kit.core.native import ffi, lib
with kit.Tracker() as mem:
    for _ in range(2000):
        pool = lib.ggml_init({"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True})
        scheduler_error = False
        try:
            lib.ggml_backend_alloc_ctx_tensors_from_buft(pool, lib.ggml_backend_cpu_buffer_type())
            lib.ggml_backend_sched_new(ffi.NULL, ffi.NULL, 0, 16, False, False)
        except kit.GgmlAbort:
            scheduler_error = True
        assert scheduler_error
        lib.ggml_free(pool)
    clean()
events = list(mem.report().events[-4:])
assert [e.action for e in events] == ["alloc", "alloc", "free", "free"], events
assert all(e.owner.startswith("context") for e in events)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_hangs_and_nothing_dies(run_script, name: str) -> None:  # type: ignore[no-untyped-def]
    run_script(HEAD + PROGRAMS[name])
