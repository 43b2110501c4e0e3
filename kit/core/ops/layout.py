"""Results made of pieces of their sources: repeated, joined, padded, rolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.core.checks import check_shape
from kit.core.dtypes import dtype_by_id
from kit.core.native import lib
from kit.core.ops._base import (
    axis_of,
    expect,
    expect_dtype,
    expect_extents,
    expect_f32,
    expect_rows,
    home,
    integer,
    is_quantized,
    ne4,
    node,
    padding,
)
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError
from kit.units import shape_text


def repeat(a: Tensor, shape: Sequence[int]) -> Tensor:
    """``a`` repeated to ``shape`` (numpy order), which every extent of ``a`` divides; f32, f16, bf16, i32 or i16.

    Raises:
        ShapeError: an extent that does not divide. DTypeError: other types.
    """
    core = home(a)
    expect_dtype(a, "f32", "f16", "bf16", "i32", "i16", use="repeat")
    expect_rows(a, "repeat")
    extents = check_shape(shape, dtype_by_id(a.p.type), f"repeat of {a.label}")
    ne = (*reversed(extents), 1, 1, 1, 1)[:4]
    expect(
        all(new % old == 0 for new, old in zip(ne, ne4(a), strict=True)),
        lambda: f"repeat: {a.label} does not repeat to shape {shape_text(extents)}",
    )
    return node(lib.ggml_repeat_4d(core.room(), a.p, *ne), core, ndim=len(extents))


def concat(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """``a`` and ``b`` one after the other along ``axis`` (numpy's number), all other extents equal, one type.

    Raises:
        ShapeError: other extents differ. DTypeError: types differ.
    """
    core = home(a, b)
    wide = a if a.ndim >= b.ndim else b
    at = axis_of(wide, axis, "concat")
    if a.p.type != b.p.type:
        raise DTypeError(f"concat: {a.label} is {a.dtype}, {b.label} is {b.dtype}; cast() one of them")
    same = all(m == n for i, (m, n) in enumerate(zip(ne4(a), ne4(b), strict=True)) if i != at)
    expect(same, lambda: f"concat: {a.label} and {b.label} differ on another axis than {axis}")
    for tensor in (a, b):
        if is_quantized(tensor):
            expect_rows(tensor, "concat")
    return node(lib.ggml_concat(core.room(), a.p, b.p, at), core, wide)


def pad(a: Tensor, widths: Sequence[Any]) -> Tensor:
    """numpy's ``pad(a, widths)`` with zeros; f32. ``widths``: for each axis one number behind, or (before, behind).

    Raises:
        ArgumentError: not a width per axis, or a negative one.
    """
    return _padded(lib.ggml_pad_ext, "pad", a, widths)


def pad_circular(a: Tensor, widths: Sequence[Any]) -> Tensor:
    """numpy's ``pad(a, widths, mode="wrap")``; f32, ``widths`` as `pad`, none above the extent of its axis.

    Raises:
        ArgumentError: not a width per axis, or one out of range.
    """
    return _padded(lib.ggml_pad_ext_circular, "pad_circular", a, widths)


def pad_reflect_1d(a: Tensor, before: int, behind: int) -> Tensor:
    """numpy's ``pad(..., mode="reflect")`` of the last axis; f32, both widths below its extent.

    Raises:
        ArgumentError: a width out of range.
    """
    core = home(a)
    expect_f32("pad_reflect_1d", a)
    largest = int(a.p.ne[0]) - 1
    p0 = integer(before, f"pad_reflect_1d of {a.label}", "before", 0, largest)
    p1 = integer(behind, f"pad_reflect_1d of {a.label}", "behind", 0, largest)
    return node(lib.ggml_pad_reflect_1d(core.room(), a.p, p0, p1), core, a)


def roll(a: Tensor, shifts: Sequence[int]) -> Tensor:
    """numpy's ``roll(a, shifts, axis=range(a.ndim))``; f32, each shift smaller than its extent.

    Raises:
        ArgumentError: not a shift per axis, or one out of range.
    """
    core = home(a)
    expect_dtype(a, "f32", use="roll")
    expect_rows(a, "roll")
    moves = [0, 0, 0, 0]
    for axis, shift in enumerate(_per_axis(a, shifts, "roll")):
        at = a.ndim - 1 - axis
        largest = int(a.p.ne[at]) - 1
        moves[at] = integer(shift, f"roll of {a.label}", f"the shift of axis {axis}", -largest, largest)
    return node(lib.ggml_roll(core.room(), a.p, *moves), core, a)


def _padded(function: Any, name: str, a: Tensor, widths: Sequence[Any]) -> Tensor:
    core = home(a)
    expect_dtype(a, "f32", use=name)
    pairs = [(0, 0)] * 4
    for axis, width in enumerate(_per_axis(a, widths, name)):
        before, behind = width if isinstance(width, (tuple, list)) and len(width) == 2 else (0, width)
        pairs[a.ndim - 1 - axis] = (
            padding(before, f"{name} of {a.label}", f"the width before axis {axis}"),
            padding(behind, f"{name} of {a.label}", f"the width behind axis {axis}"),
        )
    ne = ne4(a)
    if name == "pad_circular" and any(max(pair) > extent for pair, extent in zip(pairs, ne, strict=True)):
        raise ArgumentError(f"pad_circular: a width of {widths!r} is above its extent of {a.label}")
    expect_extents(name, [extent + before + behind for extent, (before, behind) in zip(ne, pairs, strict=True)])
    return node(function(core.room(), a.p, *(width for pair in pairs for width in pair)), core, a)


def _per_axis(a: Tensor, values: Sequence[Any], use: str) -> Sequence[Any]:
    if not isinstance(values, (tuple, list)) or len(values) != a.ndim:
        raise ArgumentError(f"{use}: {values!r} is not a value for each of the {a.ndim} axes of {a.label}")
    return values
