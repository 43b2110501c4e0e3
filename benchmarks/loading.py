"""Weights from a file: several readers against one where each read takes time, and reading against mapping.

The far-away disk is the demo model's own file with a pause before each read, put under the process by a small
preloaded library (slow_reads.c). The cold cases drop the file from the page cache before each load.
"""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

import kit
from benchmarks.fresh import run_fresh
from benchmarks.measure import Figure, interleaved
from kit.units import bytes_text

LATENCY_US = 50_000
READERS = (1, 2, 4, 8)

_LOAD = """
import json, os, sys, time
import numpy as np
import kit
from kit.core.native import ffi
from kit.models.weights.weights import Weights

path, how, readers, cold = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "cold"
backend = kit.Backend(n_threads=1)
file = kit.GGUFFile(path)
if cold:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
before = int(dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())["read_bytes"])
started = time.perf_counter()
weights = Weights(file, backend, use_mmap=how == "mmap", progress=False, readers=readers)
for tensor in weights.values():  # one byte a page: mapped ones come now
    np.frombuffer(ffi.buffer(ffi.cast("char *", tensor.p.data), tensor.nbytes), np.uint8)[::4096].sum()
took = time.perf_counter() - started
fetched = int(dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())["read_bytes"]) - before
trace = weights.trace
sequential, n_reads = (True, 0) if trace is None else (trace.sequential, trace.n_reads)
print(json.dumps({"took": took, "sequential": sequential, "n_reads": n_reads, "fetched": fetched}))
"""


def run(rounds: int, scale: float) -> list[Figure]:
    """Load in fresh processes, all ways in turn."""
    rounds = max(1, rounds // 3)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "demo.gguf"
        shutil.copyfile(kit.find_model("smollm2-135m"), path)
        _write_back(path)
        return [*_far_away(path, _compiled(folder), rounds, scale), *_cold(path, rounds)]


def _far_away(path: pathlib.Path, library: pathlib.Path, rounds: int, scale: float) -> list[Figure]:
    latency = max(1, round(LATENCY_US * scale))
    slow = {"LD_PRELOAD": str(library), "KIT_SLOW_FILE": path.name, "KIT_SLOW_US": str(latency)}
    n_reads = {}

    def load(readers: int) -> float:
        told, _ = run_fresh(_LOAD, str(path), "read", str(readers), "warm", **slow)
        if not told["sequential"]:
            raise RuntimeError("a reader went back in its section")
        n_reads[readers] = told["n_reads"]
        return float(told["took"])

    times = interleaved({str(n): functools.partial(load, n) for n in READERS}, rounds)
    note = f"{n_reads[1]} reads of {latency / 1000:g} ms each, every reader in order"
    return [
        Figure(f"a slow file, {n} readers", times[str(n)], times["1"], "one reader", bound, rounds, note)
        for n, bound in ((2, 0.7), (4, 0.5), (8, None))
    ]


def _cold(path: pathlib.Path, rounds: int) -> list[Figure]:
    ways = {"mmap": ("mmap", "1"), "one reader": ("read", "1"), "4 readers": ("read", "4")}
    figures = []
    for state in ("cold", "warm"):
        fetched: list[int] = []

        def load(how: str, readers: str, state: str = state, fetched: list[int] = fetched) -> float:
            told, _ = run_fresh(_LOAD, str(path), how, readers, state)
            fetched.append(told["fetched"])
            return float(told["took"])

        times = interleaved({name: functools.partial(load, *way) for name, way in ways.items()}, rounds)
        note = f"all pages touched; {bytes_text(int(statistics.median(fetched)))} came from the disk"
        for name in ("one reader", "4 readers"):
            figures.append(Figure(f"{state}, {name}", times[name], times["mmap"], "mmap", None, rounds, note))
    return figures


def _compiled(folder: pathlib.Path) -> pathlib.Path:
    source, library = pathlib.Path(__file__).with_name("slow_reads.c"), folder / "slow_reads.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def _write_back(path: pathlib.Path) -> None:
    """Pages that are not on the disk yet could not be dropped."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
