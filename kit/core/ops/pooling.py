"""Pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.core.checks import check_shape
from kit.core.dtypes import dtype_by_id
from kit.core.native import lib
from kit.core.ops._base import (
    choice,
    expect,
    expect_dtype,
    expect_extents,
    expect_plain,
    home,
    integer,
    node,
    padding,
    step,
)
from kit.core.tensor import Tensor
from kit.errors import ArgumentError

_POOLS = {"max": int(lib.GGML_OP_POOL_MAX), "avg": int(lib.GGML_OP_POOL_AVG)}
_MODES = {
    "nearest": int(lib.GGML_SCALE_MODE_NEAREST),
    "bilinear": int(lib.GGML_SCALE_MODE_BILINEAR),
    "bicubic": int(lib.GGML_SCALE_MODE_BICUBIC),
}


def pool_1d(a: Tensor, op: str, kernel: int, *, stride: int | None = None, pad: int = 0) -> Tensor:
    """The ``"max"`` or ``"avg"`` of windows of the last axis, f32; ``a`` f32 or f16. Padding does not count.

    Raises:
        ShapeError: the kernel is larger than the padded axis. ArgumentError: other numbers or words.
    """
    core = home(a)
    _expect_pool("pool_1d", a)
    word = choice(op, "pool_1d", "op", _POOLS)
    k, s, p = _window("pool_1d", a, kernel, kernel if stride is None else stride, pad, 0)
    return node(lib.ggml_pool_1d(core.room(), a.p, word, k, s, p), core, a)


def pool_2d(
    a: Tensor,
    op: str,
    kernel: tuple[int, int],
    *,
    stride: tuple[int, int] | None = None,
    pad: tuple[int, int] = (0, 0),
) -> Tensor:
    """The ``"max"`` or ``"avg"`` of windows of the last two axes, f32; pairs are (height, width). Padding counts as 0.

    Raises as `pool_1d`.
    """
    core = home(a)
    _expect_pool("pool_2d", a)
    word = choice(op, "pool_2d", "op", _POOLS)
    for what, value in (("kernel", kernel), ("stride", stride or kernel), ("pad", pad)):
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ArgumentError(f"pool_2d: {what} is {value!r}; give (height, width)")
    steps = stride or kernel
    k1, s1, p1 = _window("pool_2d", a, kernel[0], steps[0], pad[0], 1)
    k0, s0, p0 = _window("pool_2d", a, kernel[1], steps[1], pad[1], 0)
    return node(lib.ggml_pool_2d(core.room(), a.p, word, k0, k1, s0, s1, p0, p1), core, ndim=max(a.ndim, 2))


def upscale(a: Tensor, factor: int, mode: str = "nearest") -> Tensor:
    """`interpolate` of the last two axes to ``factor`` times their extent, ``factor`` from 2 on."""
    core = home(a)
    expect_dtype(a, "f32", use="upscale")
    times = integer(factor, f"upscale of {a.label}", "factor", 2, 1 << 15)
    ne = a.p.ne
    expect_extents("upscale", (ne[0] * times, ne[1] * times, ne[2], ne[3]))
    raw = lib.ggml_upscale(core.room(), a.p, times, choice(mode, "upscale", "mode", _MODES))
    return node(raw, core, ndim=max(a.ndim, 2))


def interpolate(
    a: Tensor, shape: Sequence[int], mode: str = "nearest", *, align_corners: bool = False, antialias: bool = False
) -> Tensor:
    """``a`` (f32) resized to ``shape`` (numpy order); ``mode`` is nearest, bilinear or bicubic over the last two axes.

    Raises:
        ArgumentError: another mode, or ``antialias`` for another than bilinear.
    """
    core = home(a)
    expect_dtype(a, "f32", use="interpolate")
    number = choice(mode, "interpolate", "mode", _MODES)
    if antialias and mode != "bilinear":
        raise ArgumentError(f"interpolate: ggml has antialias for bilinear only, not for {mode}")
    flags = (lib.GGML_SCALE_FLAG_ALIGN_CORNERS if align_corners else 0) | (
        lib.GGML_SCALE_FLAG_ANTIALIAS if antialias else 0
    )
    extents = check_shape(shape, dtype_by_id(a.p.type), f"interpolate of {a.label}")
    ne = (*reversed(extents), 1, 1, 1, 1)[:4]
    return node(lib.ggml_interpolate(core.room(), a.p, *ne, number | int(flags)), core, ndim=len(extents))


def _expect_pool(use: str, a: Tensor) -> None:
    expect_dtype(a, "f32", "f16", use=use)
    expect_plain(a, use)


def _window(use: str, a: Tensor, kernel: Any, stride: Any, pad: Any, axis: int) -> tuple[int, int, int]:
    k, s, p = step(kernel, use, "kernel"), step(stride, use, "stride"), padding(pad, use, "pad")
    if 2 * p > k:
        raise ArgumentError(f"{use}: pad {p} is more than half the kernel of {k}")
    extent = int(a.p.ne[axis])
    expect(
        extent + 2 * p >= k,
        lambda: f"{use}: a kernel of {k} is larger than the axis of {extent} of {a.label} with its padding",
    )
    return k, s, p
