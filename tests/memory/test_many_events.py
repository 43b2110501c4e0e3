"""A million events: a report in seconds, a page of a few megabytes."""

from __future__ import annotations

import time

import pytest

import kit
from kit.core.native import ffi, lib


def allocate_and_free(n: int, keep: list[object]) -> None:
    params = {"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True}
    for i in range(n):
        pool = lib.ggml_init(params)
        if i % 50 == 0:
            keep.append(pool)
        else:
            lib.ggml_free(pool)


@pytest.mark.long
def test_a_report_of_a_million_events() -> None:
    kept: list[object] = []
    with kit.Tracker() as mem:
        for i in range(100):
            with kit.memory.region(f"pass {i}"):
                allocate_and_free(5051, kept)
    started = time.perf_counter()
    report = mem.report()
    assert len(report.events) >= 1_000_000
    page = report.html()
    text = report.text()
    data = report.json()
    taken = time.perf_counter() - started
    for pool in kept:
        lib.ggml_free(pool)
    assert taken < 10, f"{taken:.1f} s"
    assert len(page.encode()) < 20_000_000
    assert len(text) < 10_000
    assert len(data) < 1_000_000
    (leak,) = report.leaks
    assert (leak.count, leak.nbytes, leak.verdict) == (len(kept), len(kept) * 4096, "growth")
    assert leak.n_passes == 505_100


@pytest.mark.long
def test_a_million_events_of_four_hundred_leaking_lines() -> None:
    names: dict[str, object] = {"lib": lib, "params": {"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True}}
    source = "\n".join(f"def make_{i}(): return lib.ggml_init(params)" for i in range(400))
    exec(compile(source, "made.py", "exec"), names)
    makers = [names[f"make_{i}"] for i in range(400)]
    kept: list[object] = []
    with kit.Tracker() as mem:
        for i in range(1250):
            for make in makers:
                pool = make()  # type: ignore[operator]
                if i % 100 == 0:
                    kept.append(pool)
                else:
                    lib.ggml_free(pool)
    report = mem.report()
    started = time.process_time()
    leaks = report.leaks
    text = report.text()
    taken = time.process_time() - started
    for pool in kept:
        lib.ggml_free(pool)
    assert len(report.events) > 990_000
    assert taken < 10, f"{taken:.1f} s"
    assert {(leak.count, leak.n_passes, leak.verdict) for leak in leaks} == {(13, 1250, "growth")}
    assert len(leaks) == 400
    assert len(text) < 10_000
