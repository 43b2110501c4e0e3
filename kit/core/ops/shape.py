"""Views and copies that change shape, order or type, not values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.core.checks import check_shape
from kit.core.dtypes import DType, dtype_by_id, dtype_of
from kit.core.native import ffi, lib
from kit.core.ops import _base
from kit.core.ops._base import (
    convertible,
    expect,
    expect_dtype,
    expect_plain,
    expect_rows,
    home,
    integer,
    is_quantized,
    node,
)
from kit.core.ops.arithmetic import part_of
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError, ShapeError
from kit.units import shape_text

_F32 = int(lib.GGML_TYPE_F32)
_I32 = int(lib.GGML_TYPE_I32)
_FLOATS = frozenset({_F32, int(lib.GGML_TYPE_F16), int(lib.GGML_TYPE_BF16)})
_MAX_BYTES = 1 << 62


def dup(a: Tensor) -> Tensor:
    """A copy of ``a``, contiguous."""
    core = home(a)
    _expect_copyable(a, "dup")
    return node(lib.ggml_dup(core.room(), a.p), core, a)


def set(
    a: Tensor, b: Tensor, *, nb1: int | None = None, nb2: int | None = None, nb3: int | None = None, offset: int = 0
) -> Tensor:
    """A copy of ``a`` with ``b`` in the part of it that starts at byte ``offset``; both f32 or both i32.

    ``nb1``..``nb3`` are the byte strides of the part, ggml order; default: those of ``a``.

    Raises:
        ShapeError: the part does not lie inside ``a``. DTypeError: other types.
    """
    core = home(a, b)
    expect_dtype(a, "f32", "i32", use="set")
    expect_dtype(b, a.dtype, use=f"set into {a.label}")
    where = part_of(a, b, (nb1, nb2, nb3), offset, "set")
    return node(lib.ggml_set(core.room(), a.p, b.p, *where), core, a)


def cpy(a: Tensor, into: Tensor) -> Tensor:
    """Copy ``a`` into ``into``, converting the type; the result is a view of ``into``.

    Types: as `cast`; into a quantized type only rows of equal length, contiguous.

    Raises:
        ShapeError: another number of elements. DTypeError: ggml cannot convert so.
    """
    core = home(a, into)
    expect(a.size == into.size, lambda: f"cpy: {a.label} has {a.size} elements, {into.label} has {into.size}")
    _expect_conversion(a, dtype_by_id(into.p.type), "cpy")
    blocks = is_quantized(into) or is_quantized(a)
    if blocks:
        expect(
            a.p.ne[0] == into.p.ne[0] or (a.contiguous and into.contiguous and a.p.type == into.p.type),
            lambda: f"cpy: {a.label} and {into.label} are quantized and should have rows of one length",
        )
        expect(
            bool(lib.ggml_are_same_shape(a.p, into.p)) or (a.contiguous and into.contiguous),
            lambda: f"cpy: {a.label} and {into.label} are quantized views of different shapes; cont() first",
        )
        expect_rows(into, "cpy")
    if is_quantized(into) and a.p.type != into.p.type:
        expect_plain(into, "cpy")
    return _base.view(lib.ggml_cpy(core.room(), a.p, into.p), core, into, into.ndim)


def cast(a: Tensor, dtype: str | DType) -> Tensor:
    """A contiguous copy of ``a`` as another element type.

    f32, f16, bf16 into each other and into what ggml can quantize; f32 to i32 and back; quantized to f32.

    Raises:
        DTypeError: ggml cannot convert so. ShapeError: rows that are no whole blocks of ``dtype``.
    """
    core = home(a)
    kind = dtype_of(dtype)
    _expect_conversion(a, kind, "cast")
    expect(
        a.p.ne[0] % kind.block == 0,
        lambda: f"cast: the rows of {a.label} are no whole blocks of {kind.block} of {kind.name}",
    )
    return node(lib.ggml_cast(core.room(), a.p, kind.id), core, a)


def cont(a: Tensor) -> Tensor:
    """A contiguous copy of ``a``."""
    core = home(a)
    _expect_copyable(a, "cont")
    return node(lib.ggml_cont(core.room(), a.p), core, a)


def reshape(a: Tensor, shape: Sequence[int]) -> Tensor:
    """A view of ``a`` with another ``shape`` (numpy order); one extent may be -1.

    Raises:
        ShapeError: another number of elements, or ``a`` is not contiguous.
    """
    core = home(a)
    try:
        wanted = tuple(integer(extent, "reshape", "an extent", -1, _MAX_BYTES) for extent in shape)
    except TypeError:
        raise ShapeError(f"reshape: {shape!r} is no shape for {a.label}; give a tuple of integers") from None
    except ArgumentError as error:
        raise ShapeError(f"{error} for {a.label}") from None
    extents = _resolve(a, wanted)
    expect_plain(a, "reshape")
    ne = (*reversed(extents), 1, 1, 1, 1)[:4]
    return _base.view(lib.ggml_reshape_4d(core.room(), a.p, *ne), core, a, len(extents))


def view(a: Tensor, shape: Sequence[int], *, strides: Sequence[int] | None = None, offset: int = 0) -> Tensor:
    """A view of ``shape`` (numpy order) into the memory of ``a``, from byte ``offset`` of it.

    ``strides`` are bytes per step of every axis but the last, whose elements lie one after the other;
    default: contiguous.

    Raises:
        ShapeError: it reaches past the memory, or cuts quantized blocks.
    """
    core = home(a)
    kind = dtype_by_id(a.p.type)
    extents = check_shape(shape, kind, f"view of {a.label}")
    row = extents[-1] // kind.block * kind.block_nbytes
    steps = [row * math.prod(extents[axis + 1 : -1]) for axis in range(len(extents) - 1)]
    if strides is not None:
        expect(
            len(strides) == len(steps), lambda: f"view of {a.label}: give {len(steps)} strides, all but the last axis'"
        )
        steps = [integer(stride, f"view of {a.label}", "a stride", 0, _MAX_BYTES) for stride in strides]
    start = integer(offset, f"view of {a.label}", "offset", 0, _MAX_BYTES)
    end = start + max(
        row + sum((n - 1) * s for n, s in zip(extents, steps, strict=False)), row * math.prod(extents[:-1])
    )
    raw = a.p
    room = a.nbytes if raw.view_src == ffi.NULL else int(lib.ggml_nbytes(raw.view_src)) - int(raw.view_offs)
    unit = kind.block_nbytes
    expect(end <= room, lambda: f"view of {a.label}: it would end at byte {end}, there are {room}")
    expect(
        start % unit == 0 and all(stride % unit == 0 for stride in steps),
        lambda: f"view of {a.label}: offset {start} and strides {steps} should be multiples of {unit} bytes",
    )
    ne = (*reversed(extents), 1, 1, 1, 1)[:4]
    nb = list(reversed(steps))
    while len(nb) < 3:
        nb.append((nb[-1] if nb else row) * ne[len(nb)])
    return _base.view(lib.ggml_view_4d(core.room(), a.p, *ne, *nb, start), core, a, len(extents))


def permute(a: Tensor, order: Sequence[int]) -> Tensor:
    """A view with its axes in another order, as `numpy.transpose`: axis i of the result is axis ``order[i]``.

    Raises:
        ShapeError: ``order`` is no permutation of the axes.
    """
    core = home(a)
    n = a.ndim
    try:
        fits = sorted(order) == list(range(n)) and not any(isinstance(old, float) for old in order)
    except TypeError:
        fits = False
    expect(fits, lambda: f"permute: {order!r} is no order of the {n} axes of {a.label}")
    moved = order[n - 1] not in (n - 1, -1)
    expect(
        not (moved and is_quantized(a)),
        lambda: f"permute: the last axis of {a.label} is made of blocks and cannot move",
    )
    axes = [0, 1, 2, 3]
    for new, old in enumerate(order):
        axes[n - 1 - old] = n - 1 - new  # ggml counts from the last axis and asks where each old one goes
    raw = lib.ggml_permute(core.room(), a.p, *axes)
    for source, target in enumerate(axes):  # ggml passes both through a C int, which strides of 2 GiB overflow
        raw.ne[target], raw.nb[target] = a.p.ne[source], a.p.nb[source]
    return _base.view(raw, core, a, n)


def transpose(a: Tensor) -> Tensor:
    """A view of ``a`` with its last two axes exchanged."""
    core = home(a)
    return _base.view(lib.ggml_transpose(core.room(), a.p), core, a, max(a.ndim, 2))


def _expect_copyable(a: Tensor, use: str) -> None:
    if is_quantized(a):  # ggml would copy an element where a block lies
        expect_rows(a, use)


def _expect_conversion(a: Tensor, kind: DType, use: str) -> None:
    source = int(a.p.type)
    if source == kind.id:
        _expect_copyable(a, use)
        return
    if is_quantized(a):
        possible = kind.id == _F32 and convertible(source, readable=True)
        expect_rows(a, use)
        expect(a.size < 1 << 32, lambda: f"{use}: {a.label} has more elements than ggml counts in this conversion")
    elif source in _FLOATS:
        possible = kind.id in _FLOATS or (kind.quantized and convertible(kind.id, writable=True))
        possible = possible or (source == _F32 and kind.id == _I32)
        if kind.quantized:
            expect_rows(a, use)
    else:
        possible = source == _I32 and kind.id == _F32
    if not possible:
        raise DTypeError(f"{use}: ggml cannot turn {a.dtype}, the type of {a.label}, into {kind.name}")


def _resolve(a: Tensor, extents: tuple[int, ...]) -> tuple[int, ...]:
    free = extents.count(-1)
    known = 1
    for extent in extents:
        known *= 1 if extent == -1 else extent
    if free == 1 and known > 0 and a.size % known == 0:
        extents = tuple(a.size // known if extent == -1 else extent for extent in extents)
        known = a.size
    fits = free <= 1 and known == a.size and 1 <= len(extents) <= 4 and all(extent > 0 for extent in extents)
    expect(fits, lambda: f"reshape: {a.label} has {a.size} elements and cannot take shape {shape_text(extents)}")
    block = dtype_by_id(a.p.type).block
    expect(
        extents[-1] % block == 0,
        lambda: f"reshape: rows of {extents[-1]} cut the blocks of {block} elements of {a.label}",
    )
    return extents
