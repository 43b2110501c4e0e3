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
