"""What a tracker sees of kit's own ggml, and whose line it names."""

from __future__ import annotations

import gc
import inspect
import pathlib
import threading
from collections.abc import Callable

import numpy as np
import pytest

import kit
import kit.memory
from kit.core.buffer import BufferSet
from kit.core.native import ffi, lib

MASK = np.zeros(4120, np.float32)  # 16,480 bytes, as in Ollama's issue 10040


def leaky_pass(backend: kit.Backend, held: list[BufferSet]) -> None:
    ctx = kit.Context(backend)
    mask = ctx.input(MASK.shape, "f32", name="mask")
    mask.set(MASK)  # the buffer is made here
    held.append(ctx.detach())


def clean_pass(backend: kit.Backend) -> None:
    with kit.Context(backend) as ctx:
        ctx.input(MASK.shape, "f32", name="mask").set(MASK)


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("passes", [200, 2000])
def test_leaked_inputs_are_one_group_with_their_line(backend: kit.Backend, passes: int) -> None:
    held: list[BufferSet] = []
    with kit.Tracker() as mem:
        for _ in range(passes):
            leaky_pass(backend, held)
    (leak,) = mem.report().leaks
    for buffers in held:
        buffers.close()
    assert (leak.count, leak.nbytes) == (passes, passes * 16480)
    assert leak.lines[0] == line_of(leaky_pass, "mask.set")
    assert leak.where == f"{pathlib.Path(__file__).name}:{leak.lines[0]} in leaky_pass"
    assert (leak.verdict, leak.names, leak.purpose, leak.library) == ("growth", ("mask",), "inputs", "kit")
    assert leak.slope_per_pass == pytest.approx(16480)
    assert leak.r_squared == pytest.approx(1.0)


def test_two_thousand_clean_passes_leave_nothing(backend: kit.Backend) -> None:
    clean_pass(backend)
    with kit.Tracker() as mem:
        for _ in range(2000):
            clean_pass(backend)
    report = mem.report()
    assert report.leaks == []
    report.assert_no_leaks()
    assert report.live_nbytes == 0
    kinds = np.bincount(report.recording.records["kind"])
    assert kinds[2] == 2 * 2000  # a buffer allocated and freed in each pass


def test_no_leak_message_names_tensor_and_line(backend: kit.Backend) -> None:
    held: list[BufferSet] = []
    with kit.Tracker() as mem:
        for _ in range(5):
            leaky_pass(backend, held)
    report = mem.report()
    for buffers in held:
        buffers.close()
    with pytest.raises(
        AssertionError, match=rf"5 buffers of 'mask'.*growth.*test_tracker.py:{line_of(leaky_pass, 'mask.set')}"
    ):
        report.assert_no_leaks()


def test_holder_of_a_leak_is_named(backend: kit.Backend) -> None:
    global kept_by_the_module
    kept_by_the_module = []
    with kit.Tracker() as mem:
        leaky_pass(backend, kept_by_the_module)
    (leak,) = mem.report().leaks
    kept_by_the_module.pop().close()
    assert any("kept_by_the_module" in holder for holder in leak.held_by), leak.held_by


kept_by_the_module: list[BufferSet]


def test_holders_in_closures_locals_and_tracebacks(backend: kit.Backend) -> None:
    def held_by(keep: Callable[[BufferSet], object]) -> tuple[str, ...]:
        with kit.Tracker() as mem:
            ctx = kit.Context(backend)
            ctx.input(MASK.shape, "f32", name="mask").set(MASK)
            kept = keep(ctx.detach())
            del ctx
        (leak,) = mem.report().leaks
        found = leak.held_by
        for resource in gc.get_objects():
            if isinstance(resource, BufferSet) and resource.nbytes:
                resource.close()
        del kept
        return found

    def fail(buffers: BufferSet) -> BaseException:
        try:
            raise RuntimeError(len(buffers))
        except RuntimeError as error:
            return error

    (text,) = held_by(lambda buffers: lambda: buffers)
    assert text.startswith("buffers in the closure of")
    (text,) = held_by(fail)
    assert text.startswith("buffers in") and "fail" in text and "traceback" in text
    (text,) = held_by(lambda buffers: [buffers])
    assert text.startswith("kept[0] in") and text.endswith("held_by")


def test_peak_and_who_was_live_then(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        for size in (1000, 4000, 2000):
            with kit.Context(backend, name=f"of {size}") as ctx:
                ctx.tensor((size,), "f32", name="t").set(np.zeros(size, np.float32))
    report = mem.report()
    (row,) = [row for row in report.at_peak if row.kind == "buffer"]
    assert (row.owner, row.nbytes) == ("of 4000", 16000)
    report.assert_peak("1 MB")
    with pytest.raises(AssertionError, match="of 4000"):
        report.assert_peak(10_000)


def test_a_report_within_the_block_shows_what_is_so_far(backend: kit.Backend) -> None:
    with kit.Tracker() as mem, kit.Context(backend) as ctx:
        before = len(mem.report().events)
        ctx.tensor((8,), "f32").set(np.zeros(8, np.float32))
        inside = mem.report()
    assert len(inside.events) > before
    assert inside.live_by_purpose() == {"weights": 32}
    assert mem.report().live_by_purpose() == {}


def test_nested_trackers_see_their_own_span(backend: kit.Backend) -> None:
    with kit.Tracker() as outer:
        clean_pass(backend)
        with kit.Tracker() as inner:
            clean_pass(backend)
        clean_pass(backend)
    n_inner = len(inner.report().events)
    assert n_inner == 4  # a context and a buffer, made and freed
    assert len(outer.report().events) == 3 * n_inner


def test_a_free_of_something_older_is_noted(backend: kit.Backend) -> None:
    ctx = kit.Context(backend)
    ctx.tensor((8,), "f32").set(np.zeros(8, np.float32))
    with kit.Tracker() as mem:
        ctx.close()
    report = mem.report()
    assert {event.action for event in report.events} == {"free of older"}
    assert (report.n_frees_of_older, report.live_nbytes, report.peak) == (2, 0, 0)
    with kit.Tracker() as outer:
        ctx = kit.Context(backend)
        with kit.Tracker() as inner:
            ctx.close()
    assert inner.report().n_frees_of_older == 1
    assert outer.report().leaks == []


def test_what_ggml_makes_inside_belongs_to_who_asked(backend: kit.Backend) -> None:
    with kit.Tracker() as mem, kit.Backend(n_threads=1) as own, kit.Context(own) as ctx:
        x = ctx.input((64, 64), "f32", name="x")
        y = x @ x.T
        ctx.graph(y @ y.T).compute(x=np.ones((64, 64), np.float32))
        inside = mem.report()
    assert {"context", "buffer", "allocator", "scheduler"} <= {event.kind for event in inside.events}
    (compute,) = [row for row in inside.live if row.owner == "compute" and row.nbytes]
    assert (compute.kind, compute.purpose, compute.nbytes) == ("buffer", "compute", 64 * 64 * 4)
    assert mem.report().leaks == []


def test_regions_and_threads_are_told_apart(backend: kit.Backend) -> None:
    def work(name: str) -> None:
        with kit.memory.region(name):
            for _ in range(50):
                clean_pass(backend)

    with kit.Tracker() as mem, kit.memory.region("test"):
        threads = [threading.Thread(target=work, args=(f"worker {i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clean_pass(backend)
    report = mem.report()
    assert {event.scope for event in report.events} == {"test", *(f"worker {i}" for i in range(4))}
    assert len({event.thread for event in report.events}) == 5
    assert report.leaks == []


def test_an_abort_inside_a_tracked_call_leaves_the_nesting_right(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        for _ in range(20):
            pool = lib.ggml_init({"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True})
            with pytest.raises(kit.GgmlAbort):
                lib.ggml_backend_sched_new(ffi.NULL, ffi.NULL, 0, 16, False, False)
            lib.ggml_free(pool)
        clean_pass(backend)
    report = mem.report()
    assert report.leaks == []
    assert all(event.owner.startswith("context") for event in report.events)


def test_by_design_is_a_class_of_its_own(backend: kit.Backend) -> None:
    held: list[BufferSet] = []
    with kit.Tracker(by_design=["mask"]) as mem:
        for _ in range(10):
            leaky_pass(backend, held)
    report = mem.report()
    for buffers in held:
        buffers.close()
    report.assert_no_leaks()
    assert [leak.verdict for leak in report.by_design] == ["by design"]


def test_a_cache_that_fills_once_is_no_growth(backend: kit.Backend) -> None:
    cache: dict[int, BufferSet] = {}
    with kit.Tracker() as mem:
        for i in range(100):
            ctx = kit.Context(backend)
            ctx.input(MASK.shape, "f32", name="entry").set(MASK)
            buffers = ctx.detach()
            if i < 8:
                cache[i] = buffers
            else:
                buffers.close()
    (leak,) = mem.report().leaks
    for buffers in cache.values():
        buffers.close()
    assert (leak.count, leak.verdict, leak.n_passes) == (8, "cache", 100)
    mem.report().assert_no_leaks()


def test_growth_at_the_rate_of_the_kv_cache_is_a_cache(backend: kit.Backend) -> None:
    held: list[BufferSet] = []
    with kit.Tracker(kv_bytes_per_token=16480) as mem:
        for _ in range(20):
            leaky_pass(backend, held)
    (leak,) = mem.report().leaks
    for buffers in held:
        buffers.close()
    assert leak.verdict == "cache"


def test_without_stacks_bytes_and_scopes_stay(backend: kit.Backend) -> None:
    with kit.Tracker(stacks=False) as mem, kit.memory.region("here"):
        clean_pass(backend)
    events = list(mem.report().events)
    assert {event.where for event in events} == {""}
    assert {event.scope for event in events} == {"here"}


@pytest.mark.model
def test_a_model_session_by_purpose_scope_and_owner(demo_model_path: pathlib.Path) -> None:
    with (
        kit.Tracker() as mem,
        kit.load(demo_model_path, progress=False, prepare="none") as model,
        model.session(n_ctx=512) as s,
    ):
        opened = mem.report().live_by_purpose()
        assert opened["kv cache"] == s.cache.nbytes == 2 * 2 * 30 * 512 * 192
        assert opened["weights"] == demo_model_path.stat().st_size + model.prepared.nbytes
        s.run("Hello")
        list(s.generate(" world", max_tokens=2))
        assert mem.report().live_by_purpose() == opened
    report = mem.report()
    assert report.leaks == []
    assert {"weights", "kv cache", "compute"} <= {row.owner for row in report.at_peak}
    scopes = {event.scope for event in report.events}
    assert {"load", "session open", "prefill"} <= scopes
    assert any(scope.startswith("token ") for scope in scopes)


def test_what_an_open_session_keeps_is_by_design_and_what_is_kept_beside_it_is_not(
    demo_model_path: pathlib.Path,
) -> None:
    held = []
    with kit.load(demo_model_path, n_threads=1, progress=False) as model, model.session(n_ctx=256) as session:
        with kit.Tracker() as mem:
            for n in (3, 5, 7):
                session.run(list(range(100, 100 + n)))
                context = kit.Context(model.backend, name="mine")
                context.tensor((8,), name="left").set(0)
                held.append(context)
        report = mem.report()
        assert {leak.owner for leak in report.leaks} == {"mine"}
        assert any("pass of 3 tokens" in leak.owner for leak in report.by_design)
        for context in held:
            context.close()


def test_sessions_that_are_never_closed_grow(demo_model_path: pathlib.Path) -> None:
    with kit.load(demo_model_path, n_threads=1, progress=False) as model:
        sessions = []
        with kit.Tracker() as mem:
            for _ in range(6):
                sessions.append(model.session(n_ctx=256))
                sessions[-1].run("Hello")
        growing = {leak.purpose for leak in mem.report().leaks if leak.verdict == "growth"}
        assert {"kv cache", "inputs"} <= growing
