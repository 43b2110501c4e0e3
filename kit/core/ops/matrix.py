"""Matrix products."""

from __future__ import annotations

from kit.core.native import lib
from kit.core.ops._base import expect, home, node
from kit.core.ops.shape import cont, transpose
from kit.core.tensor import Tensor


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """ggml's product: ``b @ a.T`` in numpy's terms, for ``a`` (..., n, k) and ``b`` (..., m, k) -> (..., m, n), f32.

    The leading axes of ``a`` repeat over those of ``b``.

    Raises:
        ShapeError: the last axes differ, or the leading ones do not repeat.
    """
    core = home(a, b)
    ne_a, ne_b = a.p.ne, b.p.ne
    expect(
        ne_a[0] == ne_b[0],
        f"mul_mat: the last axes of {a.label} and {b.label} differ: {ne_a[0]} and {ne_b[0]}; they must be equal",
    )
    expect(
        ne_b[2] % ne_a[2] == 0 and ne_b[3] % ne_a[3] == 0,
        f"mul_mat: the leading axes of {a.label} do not repeat over those of {b.label}",
    )
    expect(a.p.nb[0] <= a.p.nb[1], f"mul_mat: {a.label} is a transposed view; cont() it first")
    return node(lib.ggml_mul_mat(core.room(2), a.p, b.p), core, a, b)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """numpy's ``x @ y``: (..., m, k) @ (..., k, n) -> (..., m, n), f32.

    ``y`` costs nothing where it is ``w.T`` of a matrix w (n, k), which is how ggml stores weights; any
    other ``y`` is copied into that order first.

    Raises:
        ShapeError: the inner axes differ, or the leading ones do not repeat.
    """
    if not isinstance(y, Tensor):
        return NotImplemented
    k, rows = int(x.p.ne[0]), int(y.p.ne[1])
    expect(
        k == rows and y.ndim > 1,
        f"matmul: {x.label} @ {_transposed_label(y)}: the last axis of the first is {k}, "
        f"the last but one of the second is {rows if y.ndim > 1 else 'missing'}; they must be equal",
    )
    w = y._base if y.op == "TRANSPOSE" and y._base is not None else cont(transpose(y))
    return mul_mat(w, x)


def _transposed_label(y: Tensor) -> str:
    if y.op == "TRANSPOSE" and y._base is not None:
        return f"{y._base.name or 'unnamed'}.T {y.label.rsplit(' (', 1)[-1].join(['(', ''])}"
    return y.label
