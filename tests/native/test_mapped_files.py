"""A mapped file that becomes shorter: an exception where ggml reads it, what the system says anywhere else."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest

SAYS = "a mapped file became shorter while it was read (SIGBUS)"

MODEL = """
import os, sys
import numpy as np
import kit

def logits(model):
    with model.session(n_ctx=64, n_batch=16) as session:
        return session.run("The capital of France is", logits="last").logits

def refused(work):
    try:
        work()
    except kit.GgmlAbort as error:
        return str(error)
    return "nothing"

copy, good = sys.argv[1:3]
model = kit.load(copy, use_mmap=True, n_threads=2, progress=False)
before = logits(model)
"""


@pytest.mark.model
def test_a_model_cut_short_refuses_and_the_process_goes_on(
    child: Any, demo_model_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(demo_model_path, copy)
    done = child(
        MODEL
        + """
os.truncate(copy, os.path.getsize(copy) // 2)
for _ in range(20):
    print(refused(lambda: logits(model)))
model.close()
with kit.load(good, n_threads=2, progress=False) as again:
    assert np.array_equal(logits(again), before)
assert not list(kit.memory.live())
print("right again")
""",
        copy,
        demo_model_path,
    )
    *refusals, last = done.stdout.splitlines()
    assert len(refusals) == 20
    assert all(SAYS in text and f"{copy} shrank from" in text for text in refusals)
    assert last == "right again"


@pytest.mark.model
def test_reading_the_weights_of_a_model_cut_short(
    child: Any, demo_model_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(demo_model_path, copy)
    done = child(
        MODEL
        + """
os.truncate(copy, 1 << 20)
print(refused(lambda: model.weights["blk.29.ffn_down.weight"].numpy()))
model.close()
""",
        copy,
        demo_model_path,
    )
    assert SAYS in done.stdout


TABLE = """
import mmap, os, pathlib, sys
import numpy as np
import kit
from kit.core.compute import compute_graph
from kit.core.native import ffi, lib

PAGE = mmap.PAGESIZE
path = sys.argv[1]
pathlib.Path(path).write_bytes(np.ones((64, PAGE // 4), np.float32).tobytes())  # a row a page
with open(path) as file:
    mapping = mmap.mmap(file.fileno(), 64 * PAGE, access=mmap.ACCESS_READ)
backend = kit.Backend(n_threads=2)
raw = lib.ggml_init({"mem_size": 1 << 20, "mem_buffer": ffi.NULL, "no_alloc": True})
table = lib.ggml_new_tensor_2d(raw, lib.GGML_TYPE_F32, PAGE // 4, 64)
over = lib.ggml_backend_cpu_buffer_from_ptr(ffi.cast("void *", ffi.from_buffer(mapping)), 64 * PAGE)
lib.ggml_backend_tensor_alloc(over, table, lib.ggml_backend_buffer_get_base(over))
ids = lib.ggml_new_tensor_1d(raw, lib.GGML_TYPE_I32, 64)
few = lib.ggml_new_tensor_2d(raw, lib.GGML_TYPE_F32, 64, 64)
picked = lib.ggml_get_rows(raw, table, ids)
graph = lib.ggml_new_graph(raw)
lib.ggml_build_forward_expand(graph, picked)
lib.ggml_build_forward_expand(graph, lib.ggml_mul_mat(raw, few, few))  # asks for two threads
rest = lib.ggml_backend_alloc_ctx_tensors(raw, backend.handles[0])

def compute(**rows):
    # thread 0 picks the first half of the rows, the worker the second
    indices = np.zeros(64, np.int32)
    for where, row in rows.items():
        indices[int(where[1:])] = row
    lib.ggml_backend_tensor_set(ids, ffi.from_buffer(indices), 0, indices.nbytes)
    try:
        compute_graph(backend.handles[0], graph, 2)
    except kit.GgmlAbort as error:
        return str(error)
    values = np.empty((64, PAGE // 4), np.float32)
    lib.ggml_backend_tensor_get(picked, ffi.from_buffer(values), 0, values.nbytes)
    return "right" if (values == 1).all() else "wrong"
"""


def test_the_fault_may_be_a_workers(child: Any, tmp_path: pathlib.Path) -> None:
    done = child(
        TABLE
        + """
assert compute(_0=63, _63=63) == "right"
os.truncate(path, 32 * PAGE)
n_threads = len(os.listdir("/proc/self/task"))
for _ in range(100):
    print(compute(_63=63), compute(_0=63), compute(_0=63, _63=63), compute(), sep="|")
assert len(os.listdir("/proc/self/task")) == n_threads
""",
        tmp_path / "table",
    )
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert len(lines) == 100
    for on_worker, on_caller, on_both, on_none in lines:
        assert on_worker == f"{SAYS} [on a ggml worker thread]"
        assert on_caller == SAYS
        assert on_both.startswith(SAYS)
        assert on_none == "right"


def test_a_fault_in_pythons_own_code_is_not_ours(child: Any, tmp_path: pathlib.Path) -> None:
    done = child(
        TABLE
        + """
os.truncate(path, 32 * PAGE)
print("reading", flush=True)
bytes(mapping)
""",
        tmp_path / "table",
        returncode=-7,
    )
    assert done.stdout == "reading\n"
    assert "Fatal Python error: Bus error" in done.stderr  # faulthandler was there first


def test_a_fault_in_a_function_that_watches_is_not_ours(child: Any, tmp_path: pathlib.Path) -> None:
    done = child(
        TABLE
        + """
from kit.core.watch import Watch, Watched
context = kit.Context(backend)
x = context.input((4, 4), "f32", name="x")
y = x + x
outer = context.graph(y)
outer.compute(x=np.ones((4, 4)))
os.truncate(path, 32 * PAGE)
print("reading", flush=True)
Watch([Watched(y, call=lambda tensor: bytes(mapping))]).compute(outer)
print("read")
""",
        tmp_path / "table",
        returncode=-7,
    )
    assert done.stdout == "reading\n"


def test_a_signal_sent_by_somebody_ends_the_process_as_ever(child: Any) -> None:
    child("import os, signal, kit.core.native; os.kill(os.getpid(), signal.SIGBUS)", returncode=-7)


def test_a_handler_that_was_there_before_still_gets_its_signals(child: Any) -> None:
    done = child(
        """
        import os, signal, time
        signal.signal(signal.SIGBUS, lambda number, frame: print("mine", number))
        import kit.core.native
        os.kill(os.getpid(), signal.SIGBUS)
        time.sleep(0.01)
        """
    )
    assert done.stdout == "mine 7\n"
