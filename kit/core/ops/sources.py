"""Tensors made of numbers."""

from __future__ import annotations

import math

import numpy as np

from kit.core.context import Context
from kit.core.native import lib
from kit.core.ops._base import expect, expect_dtype, expect_plain, expect_rows, home, integer, node, real
from kit.core.tensor import Tensor
from kit.errors import ArgumentError

_MOST = 1 << 31


def fill(a: Tensor, value: float) -> Tensor:
    """A tensor of the shape and type of ``a``, f32 or f16, with ``value`` everywhere."""
    core = home(a)
    expect_dtype(a, "f32", "f16", use="fill")
    expect_plain(a, "fill")
    return node(lib.ggml_fill(core.room(), a.p, real(value, "fill", "value")), core, a)


def arange(ctx: Context, start: float, stop: float, step: float = 1.0) -> Tensor:
    """numpy's ``arange(start, stop, step)`` in f32, as a node in ``ctx``.

    Raises:
        ArgumentError: a step that is not above 0, a stop that is not above the start, or too many elements.
    """
    if not isinstance(ctx, Context):
        raise ArgumentError(f"arange takes the kit.Context of its result first, got {type(ctx).__name__}")
    ctx._core.check()
    first, last, by = (real(n, "arange", what) for n, what in ((start, "start"), (stop, "stop"), (step, "step")))
    with np.errstate(all="ignore"):
        ascending = np.float32(last) > np.float32(first) and np.float32(by) > 0
        count = float(np.ceil((np.float32(last) - np.float32(first)) / np.float32(by)))
    if not (ascending and math.isfinite(count) and 1 <= count < _MOST):
        raise ArgumentError(f"arange: from {start} to {stop} by {step} are not between 1 and {_MOST} numbers of f32")
    return Tensor(lib.ggml_arange(ctx._core.room(), first, last, by), ctx._core, 1)


def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Cosines, then sines, of ``timesteps`` (n,) f32 at ``dim // 2`` frequencies: (n, dim); an odd last column is 0.

    The frequencies are ``max_period ** (-j / (dim // 2))``.

    Raises:
        ShapeError: more axes. ArgumentError: numbers out of range.
    """
    core = home(timesteps)
    expect_dtype(timesteps, "f32", use="timestep_embedding")
    expect_rows(timesteps, "timestep_embedding")
    expect(timesteps.size == timesteps.p.ne[0], lambda: f"timestep_embedding: {timesteps.label} should have one axis")
    width = integer(dim, "timestep_embedding", "dim", 1, 1 << 24)
    period = integer(max_period, "timestep_embedding", "max_period", 1, _MOST - 1)
    return node(lib.ggml_timestep_embedding(core.room(), timesteps.p, width, period), core, ndim=2)
