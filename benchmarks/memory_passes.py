"""Two thousand passes that leak an input, as Ollama's issue 10040 did, and two thousand that do not."""

from __future__ import annotations

import inspect

import numpy as np

import kit
from benchmarks.fresh import run_fresh
from benchmarks.measure import Figure, interleaved
from kit.core.buffer import BufferSet

N_PASSES = 2000
MASK = np.zeros(4120, np.float32)  # 16,480 bytes

_GROWTH = """
import json, sys
import kit
from benchmarks.memory_passes import clean
from kit.memory.osmemory import process_memory
n = int(sys.argv[1])
with kit.Backend(n_threads=1) as backend:
    for _ in range(2):
        with kit.Tracker() as mem:
            clean(backend, 20)
        mem.report().text()
    before = process_memory().rss_anon
    with kit.Tracker() as mem:
        clean(backend, n)
        grown = process_memory().rss_anon - before
    report = mem.report()
print(json.dumps([grown, len(report.leaks), len(report.events)]))
"""


def clean(backend: kit.Backend, n: int) -> None:
    """Make ``n`` contexts with an input each, and close them."""
    for _ in range(n):
        with kit.Context(backend) as ctx:
            ctx.input(MASK.shape, "f32", name="mask").set(MASK)


def leaky(backend: kit.Backend, n: int, held: list[BufferSet]) -> None:
    """Make ``n`` contexts with an input each, and let only the contexts go."""
    for _ in range(n):
        ctx = kit.Context(backend)
        mask = ctx.input(MASK.shape, "f32", name="mask")
        mask.set(MASK)  # the buffer appears here
        held.append(ctx.detach())


def run(rounds: int, scale: float) -> list[Figure]:
    """Check counts, bytes and line; measure growth, and the time of tracked against untracked passes."""
    n = max(100, int(N_PASSES * scale))
    with kit.Backend(n_threads=1) as backend:

        def tracked() -> None:
            with kit.Tracker():
                clean(backend, n)

        times = interleaved({"tracked": tracked, "plain": lambda: clean(backend, n)}, max(1, rounds // 3))
        wrong, found = _what_is_wrong(backend, n)
    (grown, leaks, n_events), _ = run_fresh(_GROWTH, str(n))
    note = f"{n_events:,} events, the tracker's own records counted"
    return [
        Figure(f"{n:,} leaky passes: facts that are off", wrong, bound=0, rounds=1, note=found),
        Figure(f"{n:,} clean passes: leaks reported", leaks, bound=0, rounds=1),
        Figure(f"{n:,} clean passes: resident growth (MB)", grown / 1e6, bound=1.0, rounds=1, note=note),
        Figure(
            f"{n:,} clean passes, tracked", times["tracked"], times["plain"], "untracked", None, max(1, rounds // 3)
        ),
    ]


def _what_is_wrong(backend: kit.Backend, n: int) -> tuple[int, str]:
    """Number of facts about ``n`` leaky passes that the report tells otherwise, and what it tells."""
    held: list[BufferSet] = []
    with kit.Tracker() as mem:
        leaky(backend, n, held)
    leaks = mem.report().leaks
    for buffers in held:
        buffers.close()
    lines, first = inspect.getsourcelines(leaky)
    line = first + next(i for i, text in enumerate(lines) if "mask.set" in text)
    expected = (n, n * MASK.nbytes, f"memory_passes.py:{line} in leaky", "growth")
    told = [(leak.count, leak.nbytes, leak.where, leak.verdict) for leak in leaks]
    wrong = abs(len(told) - 1) + sum(a != b for row in told[:1] for a, b in zip(row, expected, strict=True))
    return wrong, "; ".join(" ".join(map(str, row)) for row in told)
