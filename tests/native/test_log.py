"""What ggml logs are records of the standard logging module."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import pytest

import kit
from kit.core.native import ffi, lib
from kit.log import LineJoiner


def _warn() -> None:
    """Make ggml log a warning, and refuse."""
    pool = lib.ggml_init({"mem_size": 400, "mem_buffer": ffi.NULL, "no_alloc": True})
    lib.ggml_new_tensor_1d(pool, lib.GGML_TYPE_F32, 4)
    with contextlib.suppress(kit.GgmlAbort):
        lib.ggml_new_tensor_1d(pool, lib.GGML_TYPE_F32, 4)
    lib.ggml_free(pool)


def test_a_warning_of_ggml_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kit.ggml"):
        _warn()
    (record,) = [r for r in caplog.records if r.name == "kit.ggml"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("ggml_new_object: not enough space")


def test_ggml_logs_from_any_python_thread(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kit.ggml"):
        threads = [threading.Thread(target=_warn, name=f"thread {i}") for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {r.threadName for r in caplog.records if r.name == "kit.ggml"} == {f"thread {i}" for i in range(4)}


def test_a_worker_that_python_does_not_know_may_log(child: Any) -> None:
    """A custom operation runs on ggml's workers; here it is ggml's own log function, on every thread."""
    done = child(
        """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(threadName)s|%(name)s|%(levelname)s|%(message)s")
        import ctypes, pathlib, numpy as np, kit
        import kit.core.native as native
        from kit.core.native import ffi, lib

        # void log_as_op(dst, a, ith, nth, userdata) calls ggml_log_internal(level=3, "...")
        import subprocess, tempfile
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "op.c").write_text('''
            void (*log_internal)(int, const char *, ...);
            void op(void *dst, const void *a, int ith, int nth, void *user) {
                for (int i = 0; i < 20; i++) log_internal(3, "thread %d of %d\\\\n", ith, nth);
            }
        ''')
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "op.so"), str(folder / "op.c")], check=True)
        op = ctypes.CDLL(str(folder / "op.so"))
        base = ctypes.CDLL(str(next(p for p in native.library_paths() if "base" in p.name)))
        ctypes.c_void_p.in_dll(op, "log_internal").value = ctypes.cast(base.ggml_log_internal, ctypes.c_void_p).value

        backend = kit.Backend(n_threads=2)
        raw = lib.ggml_init({"mem_size": 1 << 20, "mem_buffer": ffi.NULL, "no_alloc": True})
        x = lib.ggml_new_tensor_1d(raw, lib.GGML_TYPE_F32, 64)
        function = ffi.cast("ggml_custom1_op_t", ctypes.cast(op.op, ctypes.c_void_p).value)
        y = lib.ggml_map_custom1(raw, x, function, 2, ffi.NULL)
        graph = lib.ggml_new_graph(raw)
        lib.ggml_build_forward_expand(graph, y)
        buffer = lib.ggml_backend_alloc_ctx_tensors(raw, backend.handles[0])
        from kit.core.compute import compute_graph
        for _ in range(50):
            compute_graph(backend.handles[0], graph, 2)
        lib.ggml_backend_buffer_free(buffer)
        backend.close()
        """
    )
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert {(name, level) for _, name, level, _ in lines} == {("kit.ggml", "WARNING")}
    assert {text for *_, text in lines} == {"thread 0 of 2", "thread 1 of 2"}
    assert len(lines) == 2 * 20 * 50
    assert {thread for thread, *_, text in lines if text == "thread 0 of 2"} == {"MainThread"}
    assert all(thread.startswith("Dummy-") for thread, *_, text in lines if text == "thread 1 of 2")


def test_fragments_are_joined_into_lines(caplog: pytest.LogCaptureFixture) -> None:
    joiner = LineJoiner()
    with caplog.at_level(logging.DEBUG, "kit.ggml"):
        joiner.feed(2, "one ")
        joiner.feed(5, "line\ntwo")
        joiner.feed(5, "\n\n")
        joiner.feed(4, "an error\n")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "one line"),
        ("INFO", "two"),
        ("ERROR", "an error"),
    ]
