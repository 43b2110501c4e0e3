"""A chain of a million nodes, on which ggml's own recursion would overflow the stack, builds and computes."""

from __future__ import annotations

import statistics
import time

import numpy as np

import kit
from benchmarks.measure import Figure

N_NODES = 1_000_000


def run(rounds: int, scale: float) -> list[Figure]:
    """Time nodes, graph and computation apart; once, for each takes seconds."""
    n = max(1000, int(N_NODES * scale))
    spans: dict[str, list[float]] = {"nodes": [], "graph": [], "compute": []}
    for _ in range(max(1, rounds // 5)):
        for name, took in _chain(n).items():
            spans[name].append(took)
    medians = {name: statistics.median(values) for name, values in spans.items()}
    return [
        Figure(f"chain of {n:,}: {name} (s)", took, rounds=len(spans[name]), note=f"{n / took:,.0f} nodes/s")
        for name, took in medians.items()
    ]


def _chain(n: int) -> dict[str, float]:
    with kit.Backend(n_threads=1) as backend, kit.Context(backend) as ctx:
        stamps = [time.perf_counter()]
        x = y = ctx.input((1,), "f32", "x")
        for _ in range(n):
            y = y + x
        stamps.append(time.perf_counter())
        graph = ctx.graph(y)
        stamps.append(time.perf_counter())
        value = graph.compute(x=np.ones(1)).item()
        stamps.append(time.perf_counter())
        if graph.n_nodes != n or value != n + 1:
            raise RuntimeError(f"the chain has {graph.n_nodes} nodes and gave {value}; expected {n} and {n + 1}")
    return dict(zip(("nodes", "graph", "compute"), np.diff(stamps).tolist(), strict=True))
