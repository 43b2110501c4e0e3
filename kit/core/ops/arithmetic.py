"""Elementwise arithmetic on tensors, with ggml's broadcasting: the second repeats over the first."""

from __future__ import annotations

from typing import Any

from kit.core.dtypes import DType, dtype_by_id, dtype_of
from kit.core.native import lib
from kit.core.ops._base import (
    convertible,
    expect,
    expect_dtype,
    expect_plain,
    expect_rows,
    expect_same_shape,
    home,
    ids_of,
    integer,
    is_quantized,
    node,
)
from kit.core.tensor import Tensor
from kit.errors import DTypeError

_can_repeat = lib.ggml_can_repeat
_F32 = int(lib.GGML_TYPE_F32)
_F16 = int(lib.GGML_TYPE_F16)
_BF16 = int(lib.GGML_TYPE_BF16)
_PAIRS = frozenset({(_F32, _F32), (_F16, _F16), (_BF16, _BF16), (_BF16, _F32), (_F16, _F32)})
_INT_MAX = (1 << 31) - 1


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``; the smaller repeats over the larger.

    Types: f32, f16 or bf16 with the same or with f32; a quantized ``a`` with an f32 ``b`` of its shape.

    Raises:
        ShapeError: neither repeats over the other. DTypeError: other types.
    """
    return _binary(_ADD, "add", a, b)


def add_cast(a: Tensor, b: Tensor, dtype: str | DType) -> Tensor:
    """``a + b`` as element type ``dtype``, for a quantized, f16 or bf16 ``a`` (..., n) and an f32 ``b`` (..., n).

    Raises:
        ShapeError: ``b`` does not repeat over ``a`` row by row. DTypeError: other types.
    """
    core = home(a, b)
    kind = dtype_of(dtype)
    expect_dtype(b, "f32", use="add_cast")
    expect(
        a.p.ne[0] == b.p.ne[0] and bool(_can_repeat(b.p, a.p)),
        lambda: f"add_cast: the rows of {b.label} do not repeat over {a.label}",
    )
    expect_rows(a, "add_cast")
    expect_rows(b, "add_cast")
    if is_quantized(a):
        _expect_quantized_sum("add_cast", a, b)
    elif a.p.type not in (_F16, _BF16):
        raise DTypeError(f"add_cast takes a quantized, f16 or bf16 first tensor; {a.label} is {a.dtype}; use add")
    if kind.id not in (_F32, int(a.p.type)):
        raise DTypeError(f"add_cast makes f32 or {a.dtype} of {a.label}, not {kind.name}")
    return node(lib.ggml_add_cast(core.room(), a.p, b.p, kind.id), core, a)


def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """``a[t, e] + b[ids[t, e]]``: ``a`` (tokens, used, k), ``b`` (n, k), both f32, ``ids`` (tokens, used) i32.

    An id out of range raises GgmlAbort when the graph runs.

    Raises:
        ShapeError: sizes that do not fit. DTypeError: not f32 and i32.
    """
    core = home(a, b, ids)
    for tensor in (a, b):
        expect_dtype(tensor, "f32", use="add_id")
        expect_rows(tensor, "add_id")
    expect_dtype(ids, "i32", use="add_id")
    ne, ne_b, ne_ids = a.p.ne, b.p.ne, ids.p.ne
    expect(
        ne[0] == ne_b[0] and ne[1] == ne_ids[0] and ne[2] == ne_ids[1] and ne[3] == 1,
        lambda: f"add_id: {ids.label} does not name a row of {b.label} for each row of {a.label}",
    )
    return node(lib.ggml_add_id(core.room(), a.p, b.p, ids.p), core, a)


def acc(
    a: Tensor, b: Tensor, *, nb1: int | None = None, nb2: int | None = None, nb3: int | None = None, offset: int = 0
) -> Tensor:
    """A copy of ``a`` with ``b`` added to the part of it that starts at byte ``offset``, both f32.

    ``nb1``..``nb3`` are the byte strides of the part, ggml order; default: those of ``a``.

    Raises:
        ShapeError: the part does not lie inside ``a``. DTypeError: not f32.
    """
    core = home(a, b)
    expect_dtype(a, "f32", use="acc")
    expect_dtype(b, "f32", use="acc")
    where = part_of(a, b, (nb1, nb2, nb3), offset, "acc")
    return node(lib.ggml_acc(core.room(), a.p, b.p, *where), core, a)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """``a - b``; ``b`` repeats over ``a``. Raises ShapeError where it cannot, DTypeError as `add`."""
    return _binary(_SUB, "sub", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """``a * b``, elementwise; the smaller repeats over the larger. Raises as `add`."""
    return _binary(_MUL, "mul", a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    """``a / b``; ``b`` repeats over ``a``. Raises ShapeError where it cannot, DTypeError as `add`."""
    return _binary(_DIV, "div", a, b)


def part_of(
    a: Tensor, b: Tensor, strides: tuple[int | None, int | None, int | None], offset: Any, use: str
) -> tuple[int, int, int, int]:
    """Return the checked strides and offset of the part of ``a`` that has the shape of ``b``."""
    expect_plain(a, use)
    expect_rows(b, use)
    size = int(lib.ggml_type_size(a.p.type))
    chosen = [
        int(a.p.nb[i + 1]) if stride is None else integer(stride, use, f"nb{i + 1}", 0, _INT_MAX)
        for i, stride in enumerate(strides)
    ]
    start = integer(offset, use, "offset", 0, (1 << 30) - 1)
    end = start + size
    for extent, stride in zip(b.p.ne, [size, *chosen], strict=True):
        end += (int(extent) - 1) * stride
    aligned = all(number % size == 0 for number in (*chosen, start))
    expect(
        end <= a.nbytes and aligned and max(chosen) <= _INT_MAX and b.size <= a.size,
        lambda: (
            f"{use}: {b.label} at byte {start} with strides {chosen} does not lie inside {a.label} of {a.nbytes} bytes"
        ),
    )
    return chosen[0], chosen[1], chosen[2], start


_ADD, _SUB, _MUL, _DIV = lib.ggml_add, lib.ggml_sub, lib.ggml_mul, lib.ggml_div


def _binary(function: Any, name: str, a: Tensor, b: Tensor) -> Tensor:
    """The common path of the four; what is unusual goes to `_unusual`, which checks and explains."""
    try:
        core = a._core
        generation = core.generation
        usual = (
            core is b._core
            and a._generation == generation == b._generation
            and a._base is None is b._base
            and a._p.type == _F32 == b._p.type
            and _can_repeat(b._p, a._p)
        )
    except AttributeError:
        usual = False
    if not usual:
        core, a, b = _unusual(function, name, a, b)
    ndim = a.ndim
    return Tensor(function(core.room(), a._p, b._p), core, ndim if ndim >= b.ndim else b.ndim)


def _unusual(function: Any, name: str, a: Tensor, b: Tensor) -> tuple[Any, Tensor, Tensor]:
    core = home(a, b)
    if function in (_ADD, _MUL) and not _can_repeat(b.p, a.p) and _can_repeat(a.p, b.p):
        a, b = b, a
    expect(
        bool(_can_repeat(b.p, a.p)),
        lambda: f"{name}: {b.label} does not repeat over {a.label}; every axis must divide the other's",
    )
    if function is _ADD and is_quantized(a) and b.p.type == _F32:
        _expect_quantized_sum(name, a, b)
    elif (a.p.type, b.p.type) not in _PAIRS:
        raise DTypeError(
            f"{name} takes f32, f16 or bf16 tensors of one type, or with f32 as the second; "
            f"{a.label} is {a.dtype}, {b.label} is {b.dtype}: cast() one of them"
        )
    expect_rows(a, name)
    return core, a, b


def _expect_quantized_sum(name: str, a: Tensor, b: Tensor) -> None:
    kind = dtype_by_id(a.p.type)
    expect_same_shape(a, b, name)
    expect_rows(a, name)
    expect_rows(b, name)
    if kind.id in ids_of("q8_1", "q8_k") or not convertible(kind.id, readable=True, writable=True):
        raise DTypeError(f"{name}: the CPU cannot write {kind.name}; cast() {a.label} to f32 first")
