"""Transposed and three-dimensional convolutions."""

from __future__ import annotations

from typing import Any

from kit.core.dtypes import DType, dtype_of
from kit.core.native import lib
from kit.core.ops._base import (
    chain,
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
from kit.core.ops.convolution import expect_patch
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError

Triple = tuple[int, int, int]


def col2im_1d(a: Tensor, *, stride: int, channels: int, pad: int = 0) -> Tensor:
    """Add up columns ``a`` (length, channels * width) where they overlap.

    Gives (channels, (length - 1) * stride + width - 2 * pad).

    Raises:
        ShapeError: no matrix, rows that are no whole number of channels, or nothing left after padding.
    """
    core = home(a)
    expect_dtype(a, "f32", "f16", "bf16", use="col2im_1d")
    expect_plain(a, "col2im_1d")
    ne = a.p.ne
    s, p = step(stride, "col2im_1d", "stride"), padding(pad, "col2im_1d", "pad")
    c = integer(channels, f"col2im_1d of {a.label}", "channels", 1, int(min(ne[0], (1 << 31) - 1)))
    expect(ne[2] == 1 and ne[3] == 1, lambda: f"col2im_1d takes a matrix; {a.label} has more axes")
    expect(ne[0] % c == 0, lambda: f"col2im_1d: the rows of {a.label} are no whole number of {c} channels")
    expect_extents("col2im_1d", (c, (ne[1] - 1) * s + ne[0] // c - 2 * p))
    return node(lib.ggml_col2im_1d(core.room(), a.p, s, c, p), core, ndim=2)


def conv_transpose_1d(kernel: Tensor, data: Tensor, *, stride: int = 1) -> Tensor:
    """``kernel`` (in, out, width), ``data`` (in, length) -> (out, (length - 1) * stride + width), f32.

    Raises:
        ShapeError: channels that differ, or more axes. DTypeError: not an f16 or f32 kernel and f32 data.
    """
    core = home(kernel, data)
    _expect_types("conv_transpose_1d", kernel, data)
    ne_k, ne = kernel.p.ne, data.p.ne
    expect(ne[2] == 1 and ne[3] == 1, lambda: f"conv_transpose_1d: {data.label} should be (in, length)")
    expect(
        ne_k[2] == ne[1] and ne_k[3] == 1,
        lambda: f"conv_transpose_1d: {kernel.label} and {data.label} differ in channels",
    )
    s = step(stride, "conv_transpose_1d", "stride")
    expect_extents("conv_transpose_1d", ((ne[0] - 1) * s + ne_k[0], ne_k[1]))
    return node(lib.ggml_conv_transpose_1d(core.room(), kernel.p, data.p, s, 0, 1), core, ndim=2)


def conv_transpose_2d_p0(kernel: Tensor, data: Tensor, *, stride: int = 1) -> Tensor:
    """``kernel`` (in, out, kh, kw), ``data`` (1, in, h, w) -> (1, out, (h - 1) * stride + kh, ...), f32.

    Raises:
        ShapeError: channels that differ, or a batch (ggml computes only its first item).
        DTypeError: not an f16 or f32 kernel and f32 data.
    """
    core = home(kernel, data)
    _expect_types("conv_transpose_2d_p0", kernel, data)
    ne_k, ne = kernel.p.ne, data.p.ne
    expect(ne_k[3] == ne[2], lambda: f"conv_transpose_2d_p0: {kernel.label} and {data.label} differ in channels")
    expect(ne[3] == 1, lambda: f"conv_transpose_2d_p0: {data.label} is a batch; convolve one item at a time")
    s = step(stride, "conv_transpose_2d_p0", "stride")
    expect_extents("conv_transpose_2d_p0", ((ne[0] - 1) * s + ne_k[0], (ne[1] - 1) * s + ne_k[1], ne_k[2]))
    return node(lib.ggml_conv_transpose_2d_p0(core.room(), kernel.p, data.p, s), core, ndim=4)


def im2col_3d(
    kernel: Tensor,
    data: Tensor,
    channels: int,
    *,
    stride: Triple = (1, 1, 1),
    pad: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    dtype: str | DType = "f16",
) -> Tensor:
    """Patches of `conv_3d`: (batch * od, oh, ow, in * kd * kh * kw), f16 or f32. Raises as `conv_3d`."""
    core = home(kernel, data)
    kind = dtype_of(dtype)
    if kind.name not in ("f16", "f32"):
        raise DTypeError(f"im2col_3d makes f16 or f32 of {data.label}, not {kind.name}")
    numbers, c, _, _ = _space("im2col_3d", kernel, data, channels, stride, pad, dilation)
    raw = lib.ggml_im2col_3d(core.room(), kernel.p, data.p, c, *numbers, kind.id)
    return node(raw, core, ndim=4)


def conv_3d(
    kernel: Tensor,
    data: Tensor,
    channels: int,
    *,
    stride: Triple = (1, 1, 1),
    pad: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
) -> Tensor:
    """``kernel`` (out * in, kd, kh, kw), ``data`` (batch * in, d, h, w) -> (batch * out, od, oh, ow).

    ``channels`` is in. Triples are (depth, height, width).

    Raises:
        ShapeError: first axes that are no whole number of channels, or a kernel larger than the padded data.
        DTypeError: not an f16 or f32 kernel and f32 data.
    """
    core = home(kernel, data)
    _expect_types("conv_3d", kernel, data)
    numbers, c, _, _ = _space("conv_3d", kernel, data, channels, stride, pad, dilation)
    return chain(lib.ggml_conv_3d(core.room(8), kernel.p, data.p, c, *numbers), core, 4)


def conv_3d_direct(
    kernel: Tensor,
    data: Tensor,
    channels: int,
    *,
    stride: Triple = (1, 1, 1),
    pad: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
) -> Tensor:
    """`conv_3d` in one step. Raises as `conv_3d`; also ShapeError for a patch above ggml's 16 MiB of scratch memory."""
    core = home(kernel, data)
    _expect_types("conv_3d_direct", kernel, data)
    numbers, c, batch, outputs = _space("conv_3d_direct", kernel, data, channels, stride, pad, dilation)
    expect_patch("conv_3d_direct", kernel, c, outputs)
    raw = lib.ggml_conv_3d_direct(core.room(), kernel.p, data.p, *numbers, c, batch, outputs)
    return node(raw, core, ndim=4)


def _expect_types(use: str, kernel: Tensor, data: Tensor) -> None:
    expect_dtype(kernel, "f32", "f16", use=use)
    expect_dtype(data, "f32", use=use)
    expect_plain(kernel, use)
    expect_plain(data, use)


def _space(
    use: str, kernel: Tensor, data: Tensor, channels: Any, stride: Any, pad: Any, dilation: Any
) -> tuple[list[int], int, int, int]:
    _expect_types(use, kernel, data)
    ne_k, ne = kernel.p.ne, data.p.ne
    c = integer(channels, f"{use} of {data.label}", "channels", 1, int(min(ne[3], (1 << 31) - 1)))
    expect(
        ne_k[3] % c == 0 and ne[3] % c == 0,
        lambda: f"{use}: the first axes of {kernel.label} and {data.label} are no whole number of {c} channels",
    )
    triples: list[list[int]] = []
    for what, values, check in (("stride", stride, step), ("pad", pad, padding), ("dilation", dilation, step)):
        if not isinstance(values, (tuple, list)) or len(values) != 3:
            raise ArgumentError(f"{use}: {what} is {values!r}; give a triple")
        triples.append([check(value, use, what) for value in reversed(values)])  # ggml: width first
    out = []
    for axis, (s, p, d) in enumerate(zip(*triples, strict=True)):
        reach = int(ne[axis]) + 2 * p - d * (int(ne_k[axis]) - 1) - 1
        expect(reach >= 0, lambda: f"{use}: the kernel {kernel.label} is larger than {data.label} with its padding")
        out.append(reach // s + 1)
    batch, outputs = int(ne[3]) // c, int(ne_k[3]) // c
    expect_extents(use, (*(int(n) for n in ne_k[0:3]), c, *out, batch))
    expect_extents(use, (*out, batch, outputs))
    return [number for triple in triples for number in triple], c, batch, outputs
