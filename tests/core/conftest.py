"""What the tests of operations share: tensors from arrays, values of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

import kit


class Bench:
    """A context to put arrays into operations and take values out."""

    def __init__(self, ctx: kit.Context, seed: int = 0) -> None:
        self.ctx = ctx
        self.random = np.random.default_rng(seed)

    def tensor(self, values: Any, dtype: str = "f32", name: str | None = None) -> kit.Tensor:
        """A tensor that holds ``values``."""
        array = np.asarray(values)
        return self.ctx.tensor(array.shape, dtype, name).set(array)

    def normal(self, *shape: int, dtype: str = "f32", name: str | None = None) -> kit.Tensor:
        """A tensor of standard normal values."""
        return self.tensor(self.random.standard_normal(shape), dtype, name)

    def value(self, node: kit.Tensor) -> Any:
        """What a node computes to."""
        with self.ctx.graph(node) as graph:
            return graph.compute().numpy()


@pytest.fixture
def bench(ctx: kit.Context) -> Bench:
    return Bench(ctx)


@pytest.fixture(scope="module")
def benches(backend: kit.Backend) -> Callable[[], AbstractContextManager[Bench]]:
    """Makes a bench for one example of a property."""

    @contextmanager
    def make() -> Iterator[Bench]:
        with kit.Context(backend) as ctx:
            yield Bench(ctx)

    return make
