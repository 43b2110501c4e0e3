"""What this machine can do at most, measured by a small C program: memory read and float32 multiply-adds."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.peers import store
from benchmarks.peers.store import PeerMissing

_SOURCE = Path(__file__).with_name("probe.c")
_N_BYTES = 256 << 20  # far more than any cache holds
_N_TURNS = 20_000_000
_ALIGNMENT = 64


class Probe:
    """The compiled program; PeerMissing without a C compiler."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(str(_compiled()))
        for name in ("probe_multiply_add", "probe_read"):
            getattr(self._lib, name).restype = ctypes.c_double

    def read_bytes_per_s(self, n_threads: int) -> float:
        """Bytes read from memory a second, each thread its own part, all at once."""
        nbytes = _N_BYTES // n_threads // 4096 * 4096
        memory = [_aligned(nbytes) for _ in range(n_threads)]

        def read(i: int) -> float:
            found = ctypes.c_longlong()
            at = ctypes.c_void_p(memory[i].ctypes.data)
            return float(self._lib.probe_read(at, ctypes.c_size_t(nbytes), ctypes.byref(found)))

        return _rate(read, n_threads)

    def multiply_adds_per_s(self, n_threads: int) -> float:
        """Multiply-adds of float32 a second, on registers only."""

        def multiply(i: int) -> float:
            found = ctypes.c_float()
            return float(self._lib.probe_multiply_add(ctypes.c_long(_N_TURNS), ctypes.byref(found)))

        return _rate(multiply, n_threads)


def _compiled() -> Path:
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler.split()[0]):
        raise PeerMissing(f"the probe of memory and arithmetic needs a C compiler ({compiler}); Debian: gcc")
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    flags = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")

    def compile_it(part: Path) -> None:
        store.run(*compiler.split(), *flags, _SOURCE, "-o", part)

    return store.made_once(f"probe-{digest}.so", compile_it)


def _aligned(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Memory whose pages are there, at the address a vector wants."""
    raw = np.ones(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]


def _rate(work: Callable[[int], float], n_threads: int) -> float:
    """Amount of work of all threads over the time from the first's start to the last's end."""
    done = [0.0] * n_threads

    def run(i: int) -> None:
        done[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n_threads)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)
