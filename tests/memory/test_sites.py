"""Call sites: what one visit is, what is bounded, and who of several callers leaks."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable, Iterable

import numpy as np
import pytest

import kit
import kit.memory
from kit.core.buffer import BufferSet
from kit.core.native import ffi, lib


def allocated(backend: kit.Backend, name: str, size: int = 100) -> BufferSet:
    ctx = kit.Context(backend)
    ctx.input((size,), "f32", name=name).set(np.zeros(size, np.float32))
    return ctx.detach()


def one_leak(tracker: kit.Tracker, left: Iterable[BufferSet]) -> kit.memory.Leak:
    (leak,) = tracker.report().leaks
    for buffers in left:
        buffers.close()
    return leak


@pytest.mark.parametrize(("room", "n", "sizes"), [(16, 1000, 1), (16, 20, 1), (16, 200, 7), (1, 5, 1), (2, 100, 3)])
def test_a_ring_that_gives_its_oldest_back_is_a_cache(backend: kit.Backend, room: int, n: int, sizes: int) -> None:
    ring: collections.deque[BufferSet] = collections.deque()
    with kit.Tracker() as mem:
        for i in range(n):
            ring.append(allocated(backend, "entry", 100 + i % sizes))
            if len(ring) > room:
                ring.popleft().close()
    leak = one_leak(mem, ring)
    assert (leak.verdict, leak.count, leak.n_passes) == ("static" if room == 1 else "cache", room, n)
    assert not leak.is_leak


def test_an_object_that_is_replaced_by_a_larger_one_each_time_is_no_leak(backend: kit.Backend) -> None:
    current: list[BufferSet] = []
    with kit.Tracker() as mem:
        for i in range(50):
            current.append(allocated(backend, "state", 100 + 10 * i))
            if i:
                current.pop(0).close()
    assert one_leak(mem, current).verdict == "static"


def test_a_cache_that_is_emptied_now_and_then_is_bounded(backend: kit.Backend) -> None:
    kept: list[BufferSet] = []
    with kit.Tracker() as mem:
        for i in range(95):
            kept.append(allocated(backend, "garbage"))
            if i % 20 == 19:
                while kept:
                    kept.pop().close()
    assert one_leak(mem, kept).verdict == "cache"


@pytest.mark.parametrize(
    ("leaves", "verdict"),
    [
        (lambda i: i % 10 == 0, "growth"),  # a rare leak does not look bounded between two of its steps
        (lambda i: i >= 190, "live"),  # nothing has shown yet that it stays at that
        (lambda i: i == 199, "live"),
    ],
)
def test_what_rises_to_the_end_is_not_bounded(
    backend: kit.Backend, leaves: Callable[[int], bool], verdict: str
) -> None:
    left = []
    with kit.Tracker() as mem:
        for i in range(200):
            buffers = allocated(backend, "left")
            if leaves(i):
                left.append(buffers)
            else:
                buffers.close()
    leak = one_leak(mem, left)
    assert (leak.verdict, leak.is_leak, leak.n_passes) == (verdict, True, 200)


def test_a_leak_behind_a_full_ring_is_growth(backend: kit.Backend) -> None:
    ring: list[BufferSet] = []
    left = []
    with kit.Tracker() as mem:
        for i in range(300):
            ring.append(allocated(backend, "entry"))
            if len(ring) > 4:
                oldest = ring.pop(0)
                if i % 5 == 0:
                    left.append(oldest)
                else:
                    oldest.close()
    leak = one_leak(mem, ring + left)
    assert leak.verdict == "growth"
    assert leak.slope_per_pass == pytest.approx(416 / 5, rel=0.05)


def innocent(backend: kit.Backend) -> None:
    allocated(backend, "scratch").close()


def leaky(backend: kit.Backend, held: list[BufferSet]) -> None:
    held.append(allocated(backend, "leaked"))


def static(backend: kit.Backend, held: list[BufferSet]) -> None:
    held.append(allocated(backend, "tables"))


def test_callers_of_one_helper_are_told_apart(backend: kit.Backend) -> None:
    held: list[BufferSet] = []
    with kit.Tracker() as mem:
        static(backend, held)
        for _ in range(40):
            innocent(backend)
            leaky(backend, held)
    grown, once = mem.report().leaks
    for buffers in held:
        buffers.close()
    assert (grown.verdict, grown.count, grown.names, grown.n_passes) == ("growth", 40, ("leaked",), 40)
    assert (once.count, once.names) == (1, ("tables",))
    assert grown.where == once.where
    assert grown.lines[1] == leaky.__code__.co_firstlineno + 1
    assert grown.called_from == f"{pathlib.Path(__file__).name}:{grown.lines[1]} in leaky"
    assert grown.called_from in str(grown)


def test_a_caller_that_leaked_and_then_idles_is_not_excused_by_another(backend: kit.Backend) -> None:
    held: list[BufferSet] = []
    with kit.Tracker() as mem:
        for _ in range(10):
            leaky(backend, held)
        for _ in range(100):
            innocent(backend)
    assert one_leak(mem, held).verdict == "growth"


def test_recursion_does_not_split_a_site(backend: kit.Backend) -> None:
    held: list[BufferSet] = []

    def down(n: int) -> None:
        held.append(allocated(backend, "node"))
        if n:
            down(n - 1)

    with kit.Tracker() as mem:
        down(9)
    leaks = mem.report().leaks
    for buffers in held:
        buffers.close()
    assert sorted(leak.count for leak in leaks) == [1, 9]  # from outside, and from itself


def test_one_load_of_somebody_elses_model_is_one_pass_split_by_purpose(whisper_model: pathlib.Path) -> None:
    whisper = pytest.importorskip("_pywhispercpp")
    parameters = whisper.whisper_context_default_params()
    with kit.Tracker() as mem:
        context = whisper.whisper_init_from_file_with_params(str(whisper_model), parameters)
    leaks = mem.report().leaks
    whisper.whisper_free(context)
    assert {leak.n_passes for leak in leaks} == {1}
    assert {leak.verdict for leak in leaks} == {"live"}
    counts = {leak.purpose: leak.count for leak in leaks if leak.kind == "buffer"}
    assert counts == {"weights": 1, "compute": 4, "staging": 3}  # whisper.cpp: 4 graphs; caches self, cross, pad


def test_what_one_line_makes_twice_in_each_of_its_visits_is_one_pass(backend: kit.Backend) -> None:
    params = {"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True}
    pools = []
    with kit.Tracker() as mem:
        for _ in range(12):
            pools.append((lib.ggml_init(params), lib.ggml_init(params), allocated(backend, "x")))
    contexts, buffers = sorted(mem.report().leaks, key=lambda leak: leak.kind, reverse=True)
    for one, two, made in pools:
        lib.ggml_free(one)
        lib.ggml_free(two)
        made.close()
    assert (contexts.count, contexts.n_passes) == (24, 12)
    assert (contexts.verdict, contexts.slope_per_pass) == ("growth", pytest.approx(8192))
    assert (buffers.count, buffers.n_passes) == (12, 12)
