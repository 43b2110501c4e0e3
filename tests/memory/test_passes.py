"""Loops: what two thousand clean passes cost the process, and what is static, cache or growth."""

from __future__ import annotations

import time

import numpy as np
import pytest

import kit
import kit.memory
from kit.core.buffer import BufferSet

CLEAN = """
import numpy as np
import kit, kit.memory
from kit.memory.osmemory import process_memory
MASK = np.zeros(4120, np.float32)
backend = kit.Backend(n_threads=1)
def clean(n):
    for _ in range(n):
        with kit.Context(backend) as ctx:
            ctx.input(MASK.shape, "f32", name="mask").set(MASK)
for _ in range(2):
    with kit.Tracker() as mem:
        clean(20)
    mem.report().text()
before = process_memory().rss_anon
with kit.Tracker() as mem:
    clean(2000)
    grown = process_memory().rss_anon - before
report = mem.report()
assert len(report.events) == 8000
assert report.leaks == []
assert grown < 1_000_000, grown
assert report.unaccounted.tracker == 640_000
"""


def test_two_thousand_clean_passes_grow_the_process_by_less_than_a_megabyte(run_script) -> None:  # type: ignore[no-untyped-def]
    run_script(CLEAN)


def allocated(backend: kit.Backend, name: str) -> BufferSet:
    ctx = kit.Context(backend)
    ctx.input((100,), "f32", name=name).set(np.zeros(100, np.float32))
    return ctx.detach()


@pytest.mark.parametrize(("kept", "verdict"), [(1, "static"), (8, "cache"), (200, "growth")])
def test_one_time_memory_a_cache_and_growth_are_told_apart(backend: kit.Backend, kept: int, verdict: str) -> None:
    held = []
    with kit.Tracker() as mem:
        for i in range(200):
            buffers = allocated(backend, "scratch")
            if i < kept:
                held.append(buffers)
            else:
                buffers.close()
    (leak,) = mem.report().leaks
    for buffers in held:
        buffers.close()
    assert (leak.verdict, leak.count, leak.n_passes) == (verdict, kept, 200)
    assert leak.is_leak == (verdict == "growth")


def first_use(backend: kit.Backend, kept: list[BufferSet], first: int, n: int) -> kit.memory.Leak:
    """Report of ``n`` numbered passes, of which pass ``first`` made something on a line of its own."""
    with kit.Tracker() as mem:
        for i in range(n):
            with kit.memory.region(f"pass {i}"):
                if i == first:
                    kept.append(allocated(backend, "table"))
                allocated(backend, "scratch").close()
    (leak,) = mem.report().leaks
    kept.pop().close()
    return leak


def test_memory_of_the_first_use_in_a_loop_is_static(backend: kit.Backend) -> None:
    leak = first_use(backend, [], first=0, n=100)
    assert (leak.names, leak.count, leak.verdict, leak.n_passes) == (("table",), 1, "static", 100)
    assert not leak.is_leak


@pytest.mark.parametrize(("first", "n"), [(0, 3), (99, 100)])
def test_too_few_passes_or_none_after_it_excuse_nothing(backend: kit.Backend, first: int, n: int) -> None:
    leak = first_use(backend, [], first, n)
    assert (leak.verdict, leak.is_leak) == ("live", True)


def test_what_is_made_once_outside_of_any_pass_is_a_leak(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        held = allocated(backend, "once")
        for _ in range(100):
            allocated(backend, "scratch").close()
    report = mem.report()
    held.close()
    assert [(leak.names, leak.verdict) for leak in report.leaks] == [(("once",), "live")]
    with pytest.raises(AssertionError, match="'once'"):
        report.assert_no_leaks()


def test_the_timeline_is_the_running_total_in_order(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        first = allocated(backend, "a")
        second = allocated(backend, "b")
        first.close()
        second.close()
    report = mem.report()
    times = [time_ns for time_ns, _ in report.timeline]
    assert times == sorted(times) and times[0] >= 0
    changes = [event.size if event.action == "alloc" else -event.size for event in report.events]
    *points, end = report.timeline
    assert [nbytes for _, nbytes in points] == np.cumsum(changes).tolist()
    assert end[1] == 0


def test_age_and_timeline_go_on_to_the_end_of_tracking(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        held = allocated(backend, "kept")
        last_event_ns = time.monotonic_ns()
        end_ns = time.monotonic_ns()
    report = mem.report()
    (leak,) = report.leaks
    held.close()
    made_ns = report.recording.records["time_ns"][report.recording.live_at(len(report.events) - 1)][0]
    assert leak.age_ns >= end_ns - made_ns
    assert report.timeline[-1][0] >= last_event_ns - report.recording.start_ns
    assert report.timeline[-1][1] == report.timeline[-2][1] == leak.nbytes
    again = mem.report()
    assert again.timeline == report.timeline and again.leaks[0].age_ns == leak.age_ns


def test_a_long_timeline_keeps_its_peak(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        for i in range(600):
            buffers = allocated(backend, "a")
            if i == 301:
                with kit.Context(backend) as ctx:
                    ctx.tensor((50_000,), "f32", name="large").set(np.zeros(50_000, np.float32))
            buffers.close()
    report = mem.report()
    assert len(report.events) == 2404
    assert len(report.timeline) == 1000
    assert max(nbytes for _, nbytes in report.timeline) == report.peak > 200_000


def test_reserved_is_what_ggml_gave_and_used_is_what_was_asked_for(backend: kit.Backend) -> None:
    with kit.Tracker() as mem, kit.Context(backend) as ctx:
        for i, n in enumerate((3, 100)):
            ctx.tensor((n,), "f32", name=f"t{i}").set(np.zeros(n, np.float32))
        inside = mem.report()
    buffers = [event for event in inside.events if event.kind == "buffer"]
    ((name, reserved, used),) = inside.reserved_and_used()
    assert (name, used, reserved) == ("CPU", sum(e.asked for e in buffers), sum(e.size for e in buffers))
    assert reserved >= used >= 4 * 103
    assert f"reserved at peak: CPU {reserved} B for {used} B asked" in inside.text()


def test_bytes_at_peak_by_device_buffer_type_and_purpose(backend: kit.Backend) -> None:
    with kit.Tracker() as mem, kit.Context(backend) as ctx:
        ctx.tensor((64,), "f32", name="w").set(np.zeros(64, np.float32))
        ctx.input((16,), "f32", name="x").set(np.zeros(16, np.float32))
    report = mem.report()
    found = report.by_device()
    assert found["CPU.0", "CPU", "weights"] == 256
    assert found["CPU.0", "CPU", "inputs"] == 64
    assert found["CPU.0", "host", "metadata"] == ctx_nbytes(report)
    assert sum(found.values()) == report.peak
    assert {device for device, _, _ in found} <= {device.name for device in kit.devices()}
    assert "at peak by device" in report.text() and "At peak by device" in report.html()
    assert {row["device"] for row in report.to_dict()["by_device"]} == {"CPU.0"}


def ctx_nbytes(report: kit.memory.MemoryReport) -> int:
    return sum(row.nbytes for row in report.at_peak if row.kind == "context")


@pytest.mark.model
def test_what_a_stage_allocates_has_the_scope_of_the_stage(demo_model_path: object) -> None:
    with kit.load(demo_model_path, progress=False) as model, model.session(n_ctx=128, n_batch=8) as session:  # type: ignore[arg-type]
        with kit.Tracker() as mem:
            walk = session.steps("Hello world")
            names = [next(walk).name for _ in range(6)]
            walk.close()
        scopes = {event.scope for event in mem.report().events}
    assert set(names) <= scopes
    assert "blk.0.attn.q" in names
