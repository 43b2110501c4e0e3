"""A million events: seconds to the whole report, bytes of its page."""

from __future__ import annotations

import time

import kit
from benchmarks.measure import Figure
from kit.core.native import ffi, lib

N_EVENTS = 1_000_000
_KEEP = 50  # of so many allocations one stays


def run(rounds: int, scale: float) -> list[Figure]:
    """Once, for it takes seconds: contexts made and freed, some kept, each hundredth part in a region of its own."""
    n = max(10_000, int(N_EVENTS * scale))
    kept: list[object] = []
    started = time.perf_counter()
    with kit.Tracker() as mem:
        for i in range(100):
            with kit.memory.region(f"pass {i}"):
                _allocate(-(-n // 100 * _KEEP // (2 * _KEEP - 1)), kept)
    recorded = time.perf_counter()
    report = mem.report()
    page, text, data = report.html(), report.text(), report.json()
    took = time.perf_counter() - recorded
    n_events = len(report.events)
    for pool in kept:
        lib.ggml_free(pool)
    sizes = f"text {len(text):,}, JSON {len(data):,} characters; {report.leaks[0].count:,} not freed"
    return [
        Figure(f"{n_events:,} events recorded (s)", recorded - started, rounds=1),
        Figure(f"{n_events:,} events: report as HTML, text and JSON (s)", took, bound=10.0, rounds=1),
        Figure(
            f"{n_events:,} events: size of the HTML (MB)", len(page.encode()) / 1e6, bound=20.0, rounds=1, note=sizes
        ),
    ]


def _allocate(n: int, kept: list[object]) -> None:
    params = {"mem_size": 4096, "mem_buffer": ffi.NULL, "no_alloc": True}
    for i in range(n):
        pool = lib.ggml_init(params)
        if i % _KEEP == 0:
            kept.append(pool)
        else:
            lib.ggml_free(pool)
