"""Rows taken from and put into matrices by index."""

from __future__ import annotations

from kit.core.native import lib
from kit.core.ops._base import convertible, expect, expect_dtype, expect_extents, expect_rows, home, ids_of, node, view
from kit.core.tensor import Tensor
from kit.errors import DTypeError


def get_rows(a: Tensor, rows: Tensor) -> Tensor:
    """The rows of ``a`` (..., n, k) that ``rows`` (..., m) i32 names: (..., m, k), f32, or i32 of an i32 ``a``.

    Indices are checked when the graph runs; one out of range raises GgmlAbort.

    Raises:
        ShapeError: other leading axes. DTypeError: indices that are no i32, rows that cannot become f32.
    """
    core = home(a, rows)
    expect_dtype(rows, "i32", use="get_rows")
    number = int(a.p.type)
    if not (number in ids_of("f32", "f16", "bf16", "i32") or _unpackable(number)):
        raise DTypeError(f"get_rows: {a.label} is {a.dtype}, whose rows cannot become f32; cast() it first")
    expect_rows(a, "get_rows")
    expect(
        a.p.ne[2] == rows.p.ne[1] and a.p.ne[3] == rows.p.ne[2] and rows.p.ne[3] == 1,
        lambda: f"get_rows: {rows.label} has other leading axes than {a.label}",
    )
    expect_extents("get_rows", (a.p.ne[0], *rows.p.ne))
    return node(lib.ggml_get_rows(core.room(), a.p, rows.p), core, rows, ndim=max(a.ndim, min(rows.ndim + 1, 4)))


def set_rows(into: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """Write ``values`` (..., m, k) over the rows of ``into`` (..., n, k) that ``rows`` (..., m) i64 or i32 names.

    ``values`` is f32, or f16 where ``into`` is; the result is a view of ``into``. The leading axes of
    ``rows`` repeat over those of ``values``. Indices are checked when the graph runs; one out of range
    raises GgmlAbort.

    Raises:
        ShapeError: other row lengths or another number of rows. DTypeError: other types.
    """
    core = home(into, values, rows)
    expect_dtype(rows, "i64", "i32", use="set_rows")
    half = into.p.type in ids_of("f16")
    expect_dtype(values, *(("f32", "f16") if half else ("f32",)), use=f"set_rows into {into.label}")
    if not convertible(int(into.p.type), writable=True) or int(into.p.type) in ids_of("i32", "i64", "i8", "i16", "f64"):
        raise DTypeError(
            f"set_rows: {into.label} is {into.dtype}, which ggml cannot write; use a float or quantized type"
        )
    ne, found, index = into.p.ne, values.p.ne, rows.p.ne
    expect(
        ne[0] == found[0] and ne[2] == found[2] and ne[3] == found[3],
        lambda: f"set_rows: {values.label} does not fit the rows of {into.label}",
    )
    expect(
        found[1] == index[0] and found[2] % index[1] == 0 and found[3] % index[2] == 0 and index[3] == 1,
        lambda: f"set_rows: {values.label} at {rows.label} does not fit the rows of {into.label}",
    )
    expect_rows(into, "set_rows")
    expect_rows(values, "set_rows")
    return view(lib.ggml_set_rows(core.room(), into.p, values.p, rows.p), core, into, into.ndim)


def _unpackable(number: int) -> bool:
    return bool(lib.ggml_is_quantized(number)) and convertible(number, readable=True)
