"""``import kit`` in a fresh interpreter: under 0.3 s, and no ggml library mapped until the first use."""

from __future__ import annotations

from benchmarks.fresh import run_fresh
from benchmarks.measure import Figure, interleaved

_IMPORT = """
import json, pathlib, sys, time
started = time.perf_counter()
__import__(sys.argv[1])
took = time.perf_counter() - started
maps = pathlib.Path("/proc/self/maps").read_text()
print(json.dumps([took, [name for name in ("libggml", "libgkit", "kit/_native") if name in maps]]))
"""


def run(rounds: int, scale: float) -> list[Figure]:
    """Time the import statement itself, numpy's beside it."""
    mapped: set[str] = set()

    def time_import(module: str) -> float:
        (took, found), _ = run_fresh(_IMPORT, module)
        mapped.update(found)
        return float(took)

    times = interleaved({"kit": lambda: time_import("kit"), "numpy": lambda: time_import("numpy")}, rounds)
    return [
        Figure(
            "import kit (s)",
            times["kit"],
            bound=0.3,
            rounds=rounds,
            note=f"import numpy: {times['numpy'] * 1e3:.0f} ms",
        ),
        Figure("ggml libraries mapped by it", len(mapped), bound=0, rounds=rounds, note=", ".join(sorted(mapped))),
    ]
