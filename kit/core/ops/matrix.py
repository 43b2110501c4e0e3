"""Matrix products, triangles and diagonals."""

from __future__ import annotations

from typing import Any

from kit.core.native import ffi, lib
from kit.core.ops._base import (
    choice,
    convertible,
    expect,
    expect_dtype,
    expect_extents,
    expect_f32,
    expect_plain,
    expect_rows,
    home,
    ids_of,
    integer,
    is_quantized,
    node,
)
from kit.core.ops.shape import cont, transpose
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError

_F32 = int(lib.GGML_TYPE_F32)
_INT_MAX = (1 << 31) - 1


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """ggml's product: ``b @ a.T`` in numpy's terms, for ``a`` (..., n, k) and ``b`` (..., m, k) -> (..., m, n), f32.

    The leading axes of ``a`` repeat over those of ``b``. ``b`` is f32, or of the type ggml multiplies
    ``a`` with (f16 for f16, q8_0 for q4_1, ...).

    Raises:
        ShapeError: the last axes differ, the leading ones do not repeat, or a transposed view.
        DTypeError: other types.
    """
    core = home(a, b)
    ne_a, ne_b = a.p.ne, b.p.ne
    expect(
        ne_a[0] == ne_b[0],
        lambda: (
            f"mul_mat: the last axes of {a.label} and {b.label} differ: {ne_a[0]} and {ne_b[0]}; they must be equal"
        ),
    )
    expect(
        ne_b[2] % ne_a[2] == 0 and ne_b[3] % ne_a[3] == 0,
        lambda: f"mul_mat: the leading axes of {a.label} do not repeat over those of {b.label}",
    )
    _expect_factors("mul_mat", a, b)
    expect_extents("mul_mat", (ne_a[1], ne_b[1], ne_b[2], ne_b[3]))
    return node(lib.ggml_mul_mat(core.room(), a.p, b.p), core, a, b)


def mul_mat_id(experts: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """A product with the matrices that ``ids`` chooses: (tokens, used, n), f32.

    ``experts`` (count, n, k), ``b`` (tokens, used or 1, k) f32, ``ids`` (tokens, used) i32. Ids that no
    sort of ``count`` scores made are checked when the graph runs; one out of range raises GgmlAbort.

    Raises:
        ShapeError: sizes that do not fit. DTypeError: other types.
    """
    core = home(experts, b, ids)
    expect_dtype(ids, "i32", use="mul_mat_id")
    ne, ne_b, ne_ids = experts.p.ne, b.p.ne, ids.p.ne
    expect(
        ne[3] == 1 and ne_b[3] == 1 and ne_ids[2] == 1 and ne_ids[3] == 1,
        lambda: f"mul_mat_id: {experts.label}, {b.label} and {ids.label} should have at most 3, 3 and 2 axes",
    )
    expect(ne[0] == ne_b[0], lambda: f"mul_mat_id: the last axes of {experts.label} and {b.label} differ")
    expect(
        ne_ids[1] == ne_b[2] and ne_ids[0] % ne_b[1] == 0,
        lambda: f"mul_mat_id: {ids.label} does not name experts for each row of {b.label}",
    )
    _expect_factors("mul_mat_id", experts, b)
    expect_extents("mul_mat_id", (ne[1], ne_ids[0], ne_b[2]))
    checked = ids if _sorted_out_of(ids, int(ne[2])) else within(ids, int(ne[2]))
    return node(lib.ggml_mul_mat_id(core.room(), experts.p, b.p, checked.p), core, ndim=3)


def within(ids: Tensor, count: int) -> Tensor:
    """``ids`` (i32, 1 or 2 axes) by way of a table of 0..count - 1: one out of range raises GgmlAbort at compute.

    Some kernels of ggml use their indices unchecked and would read or write anywhere.
    """
    core = home(ids)
    expect(count < 1 << 24, lambda: f"{ids.label}: a table of {count} rows has more than f32 counts exactly")
    room = core.room(6)
    table = lib.ggml_reshape_2d(room, lib.ggml_arange(room, 0.0, float(count), 1.0), 1, count)
    flat = lib.ggml_reshape_1d(room, ids.p, ids.size) if ids.contiguous else None
    if flat is None:
        flat = lib.ggml_cont_4d(room, ids.p, ids.size, 1, 1, 1)
    found = lib.ggml_cast(room, lib.ggml_get_rows(room, table, flat), lib.GGML_TYPE_I32)
    return reshaped(Tensor(found, core, 2), ids)


def reshaped(a: Tensor, like: Tensor) -> Tensor:
    """``a`` in the shape of ``like``."""
    core = home(a)
    return Tensor(lib.ggml_reshape_4d(core.room(), a.p, *like.p.ne), core, like.ndim, base=a)


def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """The sum of outer products, ``b.T @ a``: ``a`` (..., k, n), ``b`` (..., k, m) f32 -> (..., m, n), f32.

    ``a`` is f32 and its leading axes repeat over those of ``b``, or f16 or quantized with the same ones.

    Raises:
        ShapeError: sizes that do not fit. DTypeError: other types.
    """
    core = home(a, b)
    ne_a, ne_b = a.p.ne, b.p.ne
    expect_dtype(b, "f32", use="out_prod")
    expect_rows(a, "out_prod")
    expect(
        ne_a[1] == ne_b[1] and ne_b[2] % ne_a[2] == 0 and ne_b[3] % ne_a[3] == 0,
        lambda: (
            f"out_prod: {a.label} and {b.label} do not fit; "
            "the last but one axes must be equal, the leading ones repeat"
        ),
    )
    expect(a.p.nb[0] <= a.p.nb[1], lambda: f"out_prod: {a.label} is a transposed view; cont() it first")
    if a.p.type != _F32:
        if not (a.p.type in ids_of("f16") or (is_quantized(a) and convertible(a.p.type, readable=True))):
            raise DTypeError(f"out_prod takes f32, f16 or a quantized type first; {a.label} is {a.dtype}")
        expect(
            ne_a[2] == ne_b[2] and ne_a[3] == ne_b[3],
            lambda: f"out_prod: only an f32 tensor repeats; the leading axes of {a.label} and {b.label} differ",
        )
    expect_extents("out_prod", (ne_a[0], ne_b[0], ne_b[2], ne_b[3]))
    return node(lib.ggml_out_prod(core.room(), a.p, b.p), core, a, b)


def diag(a: Tensor) -> Tensor:
    """Square matrices with the rows of ``a`` (..., 1, n), or (n,), on the diagonal: (..., n, n), f32."""
    core = home(a)
    expect_dtype(a, "f32", use="diag")
    expect_rows(a, "diag")
    expect(a.p.ne[1] == 1, lambda: f"diag: {a.label} has more than one row; its last but one axis should be 1")
    expect_extents("diag", (a.p.ne[0], a.p.ne[0], a.p.ne[2], a.p.ne[3]))
    return node(lib.ggml_diag(core.room(), a.p), core, ndim=max(a.ndim, 2))


def diag_mask_inf(a: Tensor, n_past: int) -> Tensor:
    """``a`` with -inf where the column is above row + ``n_past``; f32."""
    return _masked(lib.ggml_diag_mask_inf, "diag_mask_inf", a, n_past)


def diag_mask_zero(a: Tensor, n_past: int) -> Tensor:
    """``a`` with 0 where the column is above row + ``n_past``; f32."""
    return _masked(lib.ggml_diag_mask_zero, "diag_mask_zero", a, n_past)


def tri(a: Tensor, kind: str) -> Tensor:
    """Square matrices ``a`` with one triangle kept; f32. ``kind`` is lower, upper, lower_diag or upper_diag.

    Raises:
        ShapeError: not square. ArgumentError: another ``kind``.
    """
    core = home(a)
    expect_f32("tri", a)
    expect(a.p.ne[0] == a.p.ne[1], lambda: f"tri: the last two axes of {a.label} differ")
    kinds = {name: int(getattr(lib, f"GGML_TRI_TYPE_{name.upper()}")) for name in _TRIANGLES}
    return node(lib.ggml_tri(core.room(), a.p, choice(kind, "tri", "kind", kinds)), core, a)


def solve_tri(a: Tensor, b: Tensor, left: bool = True, lower: bool = True, unit: bool = False) -> Tensor:
    """``x`` of ``a @ x = b`` for lower triangular ``a`` (..., n, n) and ``b`` (..., n, k), f32. ggml has no other form.

    Raises:
        ShapeError: sizes that do not fit. ArgumentError: another form.
    """
    core = home(a, b)
    expect_f32("solve_tri", a, b)
    if not left or not lower or unit:
        raise ArgumentError("solve_tri: ggml solves only left=True, lower=True, unit=False")
    ne_a, ne_b = a.p.ne, b.p.ne
    expect(
        ne_a[0] == ne_a[1] == ne_b[1] and ne_a[2] == ne_b[2] and ne_a[3] == ne_b[3],
        lambda: f"solve_tri: {a.label} should be square and {b.label} have as many rows and the same leading axes",
    )
    return node(lib.ggml_solve_tri(core.room(), a.p, b.p, True, True, False), core, a, b)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """numpy's ``x @ y``: (..., m, k) @ (..., k, n) -> (..., m, n), f32; (k,) @ (k, n) -> (n,).

    ``y`` costs nothing where it is ``w.T`` of a matrix w (n, k), which is how ggml stores weights; any
    other ``y`` is copied into that order first, and so is an ``x`` whose rows have gaps. The leading axes
    of ``y`` repeat over those of ``x``, not the other way.

    Raises:
        ShapeError: the inner axes differ, or the leading ones do not repeat. DTypeError: as `mul_mat`.
    """
    if not isinstance(y, Tensor):
        return NotImplemented
    home(x, y._base if y._base is not None and y.op == "TRANSPOSE" else y)
    k, rows = int(x.p.ne[0]), int(y.p.ne[1])
    expect(
        k == rows and y.ndim > 1,
        lambda: (
            f"matmul: {x.label} @ {_transposed_label(y)}: the last axis of the first is {k}, "
            f"the last but one of the second is {rows if y.ndim > 1 else 'missing'}; they must be equal"
        ),
    )
    expect(
        x.p.ne[2] % y.p.ne[2] == 0 and x.p.ne[3] % y.p.ne[3] == 0,
        lambda: f"matmul: the leading axes of {_transposed_label(y)} do not repeat over those of {x.label}",
    )
    w = y._base if y.op == "TRANSPOSE" and y._base is not None else cont(transpose(y))
    product = mul_mat(w, cont(x) if x.p.nb[0] != lib.ggml_type_size(x.p.type) else x)
    if x.ndim == 1 and y.ndim == 2:
        product.ndim = 1
    return product


_TRIANGLES = ("upper_diag", "upper", "lower_diag", "lower")


def _masked(function: Any, name: str, a: Tensor, n_past: int) -> Tensor:
    core = home(a)
    expect_f32(name, a)
    return node(function(core.room(), a.p, integer(n_past, name, "n_past", 0, _INT_MAX)), core, a)


def _expect_factors(use: str, a: Tensor, b: Tensor) -> None:
    number = int(a.p.type)
    if not convertible(number, product=True):
        raise DTypeError(f"{use}: ggml cannot multiply with {a.dtype}, the type of {a.label}; cast() it first")
    partner = int(lib.ggml_get_type_traits_cpu(number).vec_dot_type)
    if int(b.p.type) not in (_F32, partner):
        raise DTypeError(f"{use}: {b.label} is {b.dtype}; with {a.label} of {a.dtype} it should be f32: cast() it")
    expect_rows(a, use)
    expect(a.p.nb[0] <= a.p.nb[1], lambda: f"{use}: {a.label} is a transposed view; cont() it first")
    expect_rows(b, use)
    if b.p.type != _F32:
        expect_plain(b, use)


def _sorted_out_of(ids: Tensor, count: int) -> bool:
    """Whether ``ids`` are the order of rows of ``count`` scores, and so surely in range."""
    raw = ids.p
    while raw.view_src != ffi.NULL:
        raw = raw.view_src
    return raw.op in (lib.GGML_OP_ARGSORT, lib.GGML_OP_TOP_K) and int(raw.src[0].ne[0]) <= count


def _transposed_label(y: Tensor) -> str:
    if y.op == "TRANSPOSE" and y._base is not None:
        return f"{y._base.name or 'unnamed'}.T {y.label.rsplit(' (', 1)[-1].join(['(', ''])}"
    return y.label
