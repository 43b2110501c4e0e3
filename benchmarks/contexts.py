"""Many adds in a context that grows, in one fixed pool that holds them all, and by bare calls of the C function."""

from __future__ import annotations

import kit
from benchmarks.measure import Figure, interleaved
from kit.core import ops
from kit.core.native import ffi, lib

N_ADDS = 100_000


def run(rounds: int, scale: float) -> list[Figure]:
    """Build, and free, ``N_ADDS`` additions per round."""
    n = max(1000, int(N_ADDS * scale))
    with kit.Backend(n_threads=1) as backend:

        def build(**how: object) -> None:
            with kit.Context(backend, **how) as ctx:  # type: ignore[arg-type]
                x = y = ctx.tensor((16,), "f32")
                for _ in range(n):
                    y = ops.add(y, x)

        times = interleaved(
            {
                "grow": lambda: build(slots=16),
                "fixed": lambda: build(policy="fixed", slots=n + 1),
                "raw": lambda: _build_raw(n),
            },
            rounds,
        )
    name = f"{n:,} adds in a growing context"
    return [
        Figure(name, times["grow"], times["fixed"], "one fixed pool", 1.4, rounds),
        Figure(name, times["grow"], times["raw"], "bare lib.ggml_add", None, rounds, "kit checks shapes and lifetimes"),
    ]


def _build_raw(n: int) -> None:
    size = (n + 1) * int(lib.ggml_tensor_overhead())
    raw = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
    x = y = lib.ggml_new_tensor_1d(raw, lib.GGML_TYPE_F32, 16)
    for _ in range(n):
        y = lib.ggml_add(raw, y, x)
    lib.ggml_free(raw)
