"""Convolutions. Kernels are (out, in, height, width), data (batch, channels, height, width), as in torch.

Most are two steps inside ggml, im2col and a product, and take several objects of the context. im2col is
f16 (f32 for a bf16 kernel), so values are rounded to f16 on the way.
"""

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
    node,
    padding,
    step,
)
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError

#: the scratch memory ggml gives its direct convolutions
_WORK_NBYTES = 16 << 20


def im2col(
    kernel: Tensor,
    data: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    is_2d: bool = True,
    dtype: str | DType = "f16",
) -> Tensor:
    """The patches of ``data`` that a convolution with ``kernel`` multiplies, one a row, in f16 or f32.

    With ``is_2d``: (batch, out_height, out_width, in * height * width); pairs are (height, width).
    Without: kernel (out, in, width), data (batch, in, length) -> (batch, out_length, in * width); the
    second number of each pair counts.

    Raises:
        ShapeError: channels that differ, or a kernel larger than the padded data. DTypeError: other types.
    """
    core = home(kernel, data)
    kind = dtype_of(dtype)
    if kind.name not in ("f16", "f32"):
        raise DTypeError(f"im2col makes f16 or f32 of {data.label}, not {kind.name}")
    expect_dtype(data, *(("f32", "f16") if kind.name == "f16" else ("f32",)), use="im2col")
    expect_plain(data, "im2col")
    (s1, s0), (p1, p0), (d1, d0) = _pairs("im2col", stride, pad, dilation)
    ne_k, ne = kernel.p.ne, data.p.ne
    width = _out("im2col", ne[0], ne_k[0], s0, p0, d0, kernel, data)
    if is_2d:
        expect(ne_k[2] == ne[2], lambda: f"im2col: {kernel.label} and {data.label} differ in channels")
        height = _out("im2col", ne[1], ne_k[1], s1, p1, d1, kernel, data)
        expect_extents("im2col", (ne_k[0], ne_k[1], ne_k[2], width, height, ne[3]))
    else:
        expect(ne_k[1] == ne[1] and ne[3] == 1, lambda: f"im2col: {kernel.label} and {data.label} differ in channels")
        expect_extents("im2col", (ne_k[0], ne_k[1], width, ne[2]))
    raw = lib.ggml_im2col(core.room(), kernel.p, data.p, s0, s1, p0, p1, d0, d1, bool(is_2d), kind.id)
    return node(raw, core, ndim=4 if is_2d else 3)


def conv_1d(kernel: Tensor, data: Tensor, *, stride: int = 1, pad: int = 0, dilation: int = 1) -> Tensor:
    """``kernel`` (out, in, width), ``data`` (1, in, length) or (in, length) -> (1, out, out_length), f32.

    Raises:
        ShapeError: channels that differ, a kernel larger than the padded data, or a batch (ggml would mix
            it up). DTypeError: not an f16 or f32 kernel and f32 data.
    """
    core = home(kernel, data)
    ne_k, ne = kernel.p.ne, data.p.ne
    _expect_two_steps("conv_1d", kernel, data, "f16", "f32")
    expect(ne_k[1] == ne[1], lambda: f"conv_1d: {kernel.label} and {data.label} differ in channels")
    expect(ne[2] == 1 and ne[3] == 1, lambda: f"conv_1d: {data.label} is a batch; convolve one item at a time")
    expect(ne_k[3] == 1, lambda: f"conv_1d: the kernel {kernel.label} should have 3 axes")
    s, p, d = step(stride, "conv_1d", "stride"), padding(pad, "conv_1d", "pad"), step(dilation, "conv_1d", "dilation")
    length = _out("conv_1d", ne[0], ne_k[0], s, p, d, kernel, data)
    expect_extents("conv_1d", (ne_k[0], ne_k[1], length))
    expect_extents("conv_1d", (ne_k[2], length))
    return chain(lib.ggml_conv_1d(core.room(5), kernel.p, data.p, s, p, d), core, 3)


def conv_1d_ph(kernel: Tensor, data: Tensor, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """`conv_1d` with half the kernel's width as padding."""
    home(kernel)
    return conv_1d(kernel, data, stride=stride, pad=int(kernel.p.ne[0]) // 2, dilation=dilation)


def conv_1d_dw(kernel: Tensor, data: Tensor, *, stride: int = 1, pad: int = 0, dilation: int = 1) -> Tensor:
    """Each channel by itself: ``kernel`` (channels, 1, width), ``data`` (1, channels, length).

    Raises as `conv_1d`.
    """
    core = home(kernel, data)
    ne_k, ne = kernel.p.ne, data.p.ne
    _expect_two_steps("conv_1d_dw", kernel, data, "f16", "f32")
    expect(
        ne_k[1] == 1 and ne_k[2] == ne[1] and ne_k[3] == 1,
        lambda: f"conv_1d_dw: the kernel {kernel.label} should be (channels, 1, width) for {data.label}",
    )
    expect(ne[2] == 1 and ne[3] == 1, lambda: f"conv_1d_dw: {data.label} is a batch; convolve one item at a time")
    s, p = step(stride, "conv_1d_dw", "stride"), padding(pad, "conv_1d_dw", "pad")
    d = step(dilation, "conv_1d_dw", "dilation")
    length = _out("conv_1d_dw", ne[0], ne_k[0], s, p, d, kernel, data)
    expect_extents("conv_1d_dw", (ne_k[0], ne[1], length))
    return chain(lib.ggml_conv_1d_dw(core.room(5), kernel.p, data.p, s, p, d), core, 3)


def conv_1d_dw_ph(kernel: Tensor, data: Tensor, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """`conv_1d_dw` with half the kernel's width as padding."""
    home(kernel)
    return conv_1d_dw(kernel, data, stride=stride, pad=int(kernel.p.ne[0]) // 2, dilation=dilation)


def conv_2d(
    kernel: Tensor,
    data: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """``kernel`` (out, in, kh, kw), ``data`` (batch, in, h, w) -> (batch, out, oh, ow), f32. Pairs are (height, width).

    Raises:
        ShapeError: channels that differ, or a kernel larger than the padded data.
        DTypeError: not an f16 or f32 kernel and f32 data.
    """
    core = home(kernel, data)
    _expect_two_steps("conv_2d", kernel, data, "f16", "f32")
    numbers = _plane("conv_2d", kernel, data, stride, pad, dilation)
    return chain(lib.ggml_conv_2d(core.room(7), kernel.p, data.p, *numbers), core, 4)


def conv_2d_sk_p0(kernel: Tensor, data: Tensor) -> Tensor:
    """`conv_2d` whose stride is the kernel's size: patches side by side."""
    home(kernel)
    return conv_2d(kernel, data, stride=(int(kernel.p.ne[1]), int(kernel.p.ne[0])))


def conv_2d_s1_ph(kernel: Tensor, data: Tensor) -> Tensor:
    """`conv_2d` with half the kernel's size as padding: an odd kernel keeps the size."""
    home(kernel)
    return conv_2d(kernel, data, pad=(int(kernel.p.ne[1]) // 2, int(kernel.p.ne[0]) // 2))


def conv_2d_dw(
    kernel: Tensor,
    data: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Each channel by itself: ``kernel`` (channels, 1, kh, kw) f16 or bf16, ``data`` (batch, channels, h, w) f32.

    Raises as `conv_2d`.
    """
    core = home(kernel, data)
    _expect_two_steps("conv_2d_dw", kernel, data, "f16", "bf16")
    numbers = _plane("conv_2d_dw", kernel, data, stride, pad, dilation, depthwise=True)
    return chain(lib.ggml_conv_2d_dw(core.room(8), kernel.p, data.p, *numbers), core, 4)


def conv_2d_dw_direct(
    kernel: Tensor,
    data: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """`conv_2d_dw` in one step, with an f32 or f16 kernel; exact f32 arithmetic. Raises as `conv_2d`."""
    core = home(kernel, data)
    _expect_two_steps("conv_2d_dw_direct", kernel, data, "f32", "f16")
    numbers = _plane("conv_2d_dw_direct", kernel, data, stride, pad, dilation, depthwise=True)
    return node(lib.ggml_conv_2d_dw_direct(core.room(), kernel.p, data.p, *numbers), core, ndim=4)


def conv_2d_direct(
    kernel: Tensor,
    data: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """`conv_2d` in one step: no im2col in the compute buffer, no rounding to f16 with an f32 kernel.

    Raises as `conv_2d`; also ShapeError where one patch does not fit into ggml's 16 MiB of scratch memory.
    """
    core = home(kernel, data)
    _expect_two_steps("conv_2d_direct", kernel, data, "f32", "f16")
    numbers = _plane("conv_2d_direct", kernel, data, stride, pad, dilation)
    expect_patch("conv_2d_direct", kernel, int(kernel.p.ne[2]), int(kernel.p.ne[3]))
    return node(lib.ggml_conv_2d_direct(core.room(), kernel.p, data.p, *numbers), core, ndim=4)


def expect_patch(use: str, kernel: Tensor, channels: int, outputs: int) -> None:
    """Raise ShapeError where one patch and its results do not fit into ggml's scratch memory."""
    ne = kernel.p.ne
    depth = int(ne[2]) if use == "conv_3d_direct" else 1
    patch = int(ne[0]) * int(ne[1]) * depth * channels * int(lib.ggml_type_size(kernel.p.type)) + outputs * 4
    expect(
        patch <= _WORK_NBYTES, lambda: f"{use}: a patch of {kernel.label} takes {patch} bytes, ggml has {_WORK_NBYTES}"
    )


def _expect_two_steps(use: str, kernel: Tensor, data: Tensor, *kernel_types: str) -> None:
    expect_dtype(kernel, *kernel_types, use=use)
    expect_dtype(data, "f32", use=use)
    expect_plain(kernel, use)
    expect_plain(data, use)


def _plane(
    use: str, kernel: Tensor, data: Tensor, stride: Any, pad: Any, dilation: Any, *, depthwise: bool = False
) -> tuple[int, ...]:
    ne_k, ne = kernel.p.ne, data.p.ne
    if depthwise:
        expect(
            ne_k[2] == 1 and ne_k[3] == ne[2],
            lambda: f"{use}: the kernel {kernel.label} should be (channels, 1, height, width) for {data.label}",
        )
    else:
        expect(ne_k[2] == ne[2], lambda: f"{use}: {kernel.label} and {data.label} differ in channels")
    (s1, s0), (p1, p0), (d1, d0) = _pairs(use, stride, pad, dilation)
    width = _out(use, ne[0], ne_k[0], s0, p0, d0, kernel, data)
    height = _out(use, ne[1], ne_k[1], s1, p1, d1, kernel, data)
    expect_extents(use, (ne_k[0], ne_k[1], ne[2], width, height, ne[3]))
    expect_extents(use, (ne_k[3], width, height, ne[3]))
    return s0, s1, p0, p1, d0, d1


def _pairs(use: str, stride: Any, pad: Any, dilation: Any) -> list[tuple[int, int]]:
    pairs = []
    for what, values, check in (("stride", stride, step), ("pad", pad, padding), ("dilation", dilation, step)):
        if not isinstance(values, (tuple, list)) or len(values) != 2:
            raise ArgumentError(f"{use}: {what} is {values!r}; give a pair")
        pairs.append((check(values[0], use, what), check(values[1], use, what)))
    return pairs


def _out(use: str, extent: int, kernel: int, s: int, p: int, d: int, k: Tensor, data: Tensor) -> int:
    reach = int(extent) + 2 * p - d * (int(kernel) - 1) - 1
    expect(reach >= 0, lambda: f"{use}: the kernel {k.label} is larger than {data.label} with its padding")
    return reach // s + 1
