"""Fixtures of the native tests: a fresh interpreter, a graph that ggml aborts in, what the system counts."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

Child = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def child() -> Child:
    """Run code in a fresh interpreter; it must end with the exit code expected (0)."""

    def run(
        code: str, *arguments: object, returncode: int = 0, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=dict(os.environ, **environment)
        )
        assert done.returncode == returncode, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


class Rows:
    """Rows picked from a table by index: ggml aborts at an index outside, on the thread whose share it is in."""

    N = 64

    def __init__(self, n_threads: int) -> None:
        import kit

        self.backend = kit.Backend(n_threads=n_threads)
        context = kit.Context(self.backend)
        self.table = np.arange(160, dtype=np.float32).reshape(10, 16)
        weights = context.tensor((10, 16), "f32", name="table")
        self.ids = context.input((self.N,), "i32", name="ids")
        self.picked = kit.ops.scale(kit.ops.get_rows(weights, self.ids), 2.0)
        self.products = weights @ weights.T  # ggml uses as many threads as the busiest node asks for
        self.graph = context.graph(self.picked, self.products)
        weights.set(self.table)
        assert self.good()  # outputs have their memory from here on

    def good(self) -> bool:
        """Compute with indices inside; whether the result is right."""
        ids = np.arange(self.N, dtype=np.int32) % 10
        self.graph.compute({self.ids: ids})
        return bool(
            np.array_equal(self.picked.numpy(), 2 * self.table[ids])
            and np.array_equal(self.products.numpy(), self.table @ self.table.T)
        )

    def bad(self, *where: int) -> Any:
        """Compute with an index outside at each of the positions ``where``."""
        ids = np.arange(self.N, dtype=np.int32) % 10
        ids[list(where)] = 1000
        return self.graph.compute({self.ids: ids})


@pytest.fixture(params=[1, 2, 4], ids=["1 thread", "2 threads", "4 threads"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    made = Rows(request.param)
    yield made
    made.backend.close()


@pytest.fixture
def rows_on_two_threads() -> Iterator[Rows]:
    made = Rows(2)
    yield made
    made.backend.close()


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.fixture
def n_os_threads() -> Callable[[], int]:
    """The threads the operating system counts in this process."""
    return _threads


@pytest.fixture
def resident_bytes() -> Callable[[], int]:
    """The resident memory of this process."""

    def read() -> int:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    return read
