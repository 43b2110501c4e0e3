"""Rows taken from and put into matrices by index."""

from __future__ import annotations

from kit.core.native import lib
from kit.core.ops._base import expect, expect_dtype, home, node, view
from kit.core.tensor import Tensor


def get_rows(a: Tensor, rows: Tensor) -> Tensor:
    """The rows of ``a`` (n, k) that ``rows`` (i32) names: (len(rows), k), f32.

    Indices are checked when the graph runs; one out of range raises GgmlAbort.
    """
    core = home(a, rows)
    expect_dtype(rows, "i32", use="get_rows")
    expect(
        a.p.ne[2] == rows.p.ne[1] and a.p.ne[3] == rows.p.ne[2],
        f"get_rows: {rows.label} has other leading axes than {a.label}",
    )
    return node(lib.ggml_get_rows(core.room(), a.p, rows.p), core, rows, ndim=max(a.ndim, rows.ndim + 1))


def set_rows(into: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """Write ``values`` (m, k) f32 over the rows of ``into`` (n, k) that ``rows`` (m,) i64 or i32 names; a view of ``into``.

    Raises:
        ShapeError: other row lengths or another number of rows.
    """
    core = home(into, values, rows)
    expect_dtype(rows, "i64", "i32", use="set_rows")
    expect_dtype(values, "f32", use="set_rows")
    expect(
        into.p.ne[0] == values.p.ne[0] and values.p.ne[1] == rows.p.ne[0] and rows.p.ne[3] == 1,
        f"set_rows: {values.label} at {rows.label} does not fit the rows of {into.label}",
    )
    return view(lib.ggml_set_rows(core.room(), into.p, values.p, rows.p), core, into, into.ndim)
