"""ggml's aborts in the middle of a computation, on the calling thread and on ggml's workers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import kit

FIRST, LAST = 0, 63  # the caller computes the first share of the rows, the last worker the last


def test_the_right_rows_come_after_an_abort_in_any_share(rows: Any) -> None:
    assert rows.good()
    for where in ([FIRST], [LAST], [FIRST, LAST], range(64)):
        with pytest.raises(kit.GgmlAbort, match="i01"):
            rows.bad(*where)
        assert rows.good()


def test_the_message_says_that_a_worker_aborted(rows_on_two_threads: Any) -> None:
    with pytest.raises(kit.GgmlAbort, match="on a ggml worker thread"):
        rows_on_two_threads.bad(LAST)
    with pytest.raises(kit.GgmlAbort) as caught:
        rows_on_two_threads.bad(FIRST)
    assert "worker" not in str(caught.value)
    assert "nodes)" in str(caught.value)


def test_thousands_of_aborts_hang_nowhere_and_leak_nothing(
    rows: Any, resident_bytes: Callable[[], int], n_os_threads: Callable[[], int]
) -> None:
    def some(times: int) -> None:
        for i in range(times):
            where = ([FIRST], [LAST], range(64))[i % 3]
            with pytest.raises(kit.GgmlAbort):
                rows.bad(*where)
            if i % 4 == 0:
                assert rows.good()

    some(30)
    gc.collect()
    before, threads = resident_bytes(), n_os_threads()
    some(1500 if rows.backend.n_threads == 2 else 150)
    gc.collect()
    assert n_os_threads() == threads
    assert resident_bytes() - before < 1 << 20


def test_an_abort_leaves_other_backends_as_they_are(rows_on_two_threads: Any) -> None:
    with kit.Backend(n_threads=2) as other:
        context = kit.Context(other)
        x = context.input((2, 2), "f32", name="x")
        graph = context.graph(x + x)
        for _ in range(50):
            with pytest.raises(kit.GgmlAbort):
                rows_on_two_threads.bad(LAST)
            assert graph.compute(x=[[1, 2], [3, 4]]).numpy().tolist() == [[2, 4], [6, 8]]


def test_python_threads_on_two_backends_take_turns() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        with kit.Backend(n_threads=2) as backend:
            context = kit.Context(backend)
            w, x = context.input((64, 48), "f32", name="w"), context.input((16, 48), "f32", name="x")
            graph = context.graph(x @ w.T)
            for _ in range(200):
                a = rng.standard_normal((64, 48), dtype=np.float32)
                b = rng.standard_normal((16, 48), dtype=np.float32)
                if not np.allclose(graph.compute(w=a, x=b).numpy(), b @ a.T, atol=1e-3):
                    return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


def test_one_thread_aborts_while_another_computes(rows_on_two_threads: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def fail() -> int:
        count = 0
        for i in range(300):
            try:
                rows_on_two_threads.bad((FIRST, LAST)[i % 2])
            except kit.GgmlAbort:
                count += 1
        return count

    def succeed() -> bool:
        with kit.Backend(n_threads=2) as backend:
            context = kit.Context(backend)
            x = context.input((8, 8), "f32", name="x")
            graph = context.graph(kit.ops.sqr(x))
            return all((graph.compute(x=[[i] * 8] * 8).numpy() == i * i).all() for i in range(300))

    with ThreadPoolExecutor(2) as pool:
        failed, succeeded = pool.submit(fail), pool.submit(succeed)
        assert succeeded.result() is True
        assert failed.result() == 300
