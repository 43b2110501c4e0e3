"""Sums, orders and other questions about whole rows; a row is the last axis."""

from __future__ import annotations

import math

from kit.core.native import lib
from kit.core.ops._base import (
    choice,
    expect,
    expect_dtype,
    expect_f32,
    expect_plain,
    expect_rows,
    expect_same_shape,
    home,
    integer,
    node,
)
from kit.core.ops.unary import clamp
from kit.core.tensor import Tensor

_INT_MAX = (1 << 31) - 1


def sum(a: Tensor) -> Tensor:
    """The sum of all elements, shape (1,), in the type of ``a``: f32, f16 or bf16."""
    core = home(a)
    expect_dtype(a, "f32", "f16", "bf16", use="sum")
    expect_rows(a, "sum")
    return node(lib.ggml_sum(core.room(), a.p), core, ndim=1)


def sum_rows(a: Tensor) -> Tensor:
    """numpy's ``a.sum(-1, keepdims=True)``; f32."""
    core = home(a)
    expect_dtype(a, "f32", use="sum_rows")
    expect_rows(a, "sum_rows")
    return node(lib.ggml_sum_rows(core.room(), a.p), core, a)


def cumsum(a: Tensor) -> Tensor:
    """numpy's ``a.cumsum(-1)``; f32."""
    core = home(a)
    expect_dtype(a, "f32", use="cumsum")
    expect_rows(a, "cumsum")
    return node(lib.ggml_cumsum(core.room(), a.p), core, a)


def mean(a: Tensor) -> Tensor:
    """numpy's ``a.mean(-1, keepdims=True)``; f32."""
    core = home(a)
    expect_dtype(a, "f32", use="mean")
    expect_rows(a, "mean")
    return node(lib.ggml_mean(core.room(), a.p), core, a)


def argmax(a: Tensor) -> Tensor:
    """numpy's ``a.argmax(-1)`` of a matrix (m, n): (m,) i32."""
    core = home(a)
    expect_dtype(a, "f32", use="argmax")
    expect_rows(a, "argmax")
    expect(a.p.ne[2] == 1 and a.p.ne[3] == 1, lambda: f"argmax takes a matrix; {a.label} has more axes: reshape it")
    expect(a.p.ne[0] <= _INT_MAX, lambda: f"argmax: the rows of {a.label} are longer than an i32 counts")
    return node(lib.ggml_argmax(core.room(), a.p), core, ndim=1)


def count_equal(a: Tensor, b: Tensor) -> Tensor:
    """How many elements of two i32 tensors of one shape are equal: (1,) i64."""
    core = home(a, b)
    expect_dtype(a, "i32", use="count_equal")
    expect_dtype(b, "i32", use="count_equal")
    expect_same_shape(a, b, "count_equal")
    expect_rows(a, "count_equal")
    expect_rows(b, "count_equal")
    return node(lib.ggml_count_equal(core.room(), a.p, b.p), core, ndim=1)


def argsort(a: Tensor, order: str = "asc") -> Tensor:
    """The indices that put each row of ``a`` in ``order``, ``"asc"`` or ``"desc"``: i32. NaN counts as +inf.

    Raises:
        ArgumentError: another order.
    """
    number = choice(order, "argsort", "order", {"asc": lib.GGML_SORT_ORDER_ASC, "desc": lib.GGML_SORT_ORDER_DESC})
    sortable = _sortable(a, "argsort")
    core = home(sortable)
    return node(lib.ggml_argsort(core.room(), sortable.p, number), core, a)


def argsort_top_k(a: Tensor, k: int) -> Tensor:
    """The indices of the ``k`` largest of each row, largest first: (..., k) i32, a view of the whole order."""
    _expect_k(a, k, "argsort_top_k")
    order = argsort(a, "desc")
    core = home(order)
    ne, nb = order.p.ne, order.p.nb
    raw = lib.ggml_view_4d(core.room(), order.p, k, ne[1], ne[2], ne[3], nb[1], nb[2], nb[3], 0)
    return Tensor(raw, core, a.ndim, base=order)


def top_k(a: Tensor, k: int) -> Tensor:
    """The indices of the ``k`` largest of each row, in no order: (..., k) i32."""
    _expect_k(a, k, "top_k")
    sortable = _sortable(a, "top_k")
    core = home(sortable)
    return node(lib.ggml_top_k(core.room(), sortable.p, k), core, a)


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """``-mean(sum(labels * log_softmax(logits), -1))`` over the rows, shape (1,); both f32 of one shape."""
    core = home(logits, labels)
    expect_f32("cross_entropy_loss", logits, labels)
    expect_same_shape(logits, labels, "cross_entropy_loss")
    return node(lib.ggml_cross_entropy_loss(core.room(), logits.p, labels.p), core, ndim=1)


def _expect_k(a: Tensor, k: int, use: str) -> None:
    home(a)
    integer(k, use, f"k of {a.label}", 1, int(a.p.ne[0]))


def _sortable(a: Tensor, use: str) -> Tensor:
    """``a`` without NaN, at which C++'s sort would run out of the row."""
    home(a)
    expect_dtype(a, "f32", use=use)
    expect_plain(a, use)
    expect(a.p.ne[0] <= _INT_MAX, lambda: f"{use}: the rows of {a.label} are longer than an i32 counts")
    return clamp(a, -math.inf, math.inf)
