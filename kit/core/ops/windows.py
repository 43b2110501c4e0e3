"""What segment-anything's image encoder needs: windows and relative positions."""

from __future__ import annotations

from kit.core.native import lib
from kit.core.ops._base import (
    expect,
    expect_dtype,
    expect_extents,
    expect_f32,
    expect_plain,
    expect_same_shape,
    home,
    integer,
    node,
)
from kit.core.tensor import Tensor

_SIDE = 1 << 15


def win_part(a: Tensor, w: int) -> Tensor:
    """Cut (height, width, channels) f32 into windows of side ``w``, zeros at the end: (windows, w, w, channels).

    Raises:
        ShapeError: more axes. ArgumentError: a side below 1.
    """
    core = home(a)
    expect_f32("win_part", a)
    side = integer(w, f"win_part of {a.label}", "w", 1, _SIDE)
    ne = a.p.ne
    expect(
        ne[3] == 1 and max(ne[1], ne[2]) <= _SIDE, lambda: f"win_part: {a.label} should be (height, width, channels)"
    )
    expect_extents("win_part", (ne[0], side, side, -(-ne[1] // side) * -(-ne[2] // side)))
    return node(lib.ggml_win_part(core.room(), a.p, side), core, ndim=4)


def win_unpart(a: Tensor, width: int, height: int, w: int) -> Tensor:
    """Undo `win_part`: (windows, w, w, channels) f32 -> (height, width, channels).

    Raises:
        ShapeError: windows of another side, or too few. ArgumentError: numbers out of range.
    """
    core = home(a)
    expect_f32("win_unpart", a)
    side = integer(w, "win_unpart", "w", 1, _SIDE)
    w0, h0 = integer(width, "win_unpart", "width", 1, _SIDE), integer(height, "win_unpart", "height", 1, _SIDE)
    ne, count = a.p.ne, -(-w0 // side) * -(-h0 // side)
    expect(
        ne[1] == side and ne[2] == side and ne[3] >= count,
        lambda: f"win_unpart: {a.label} should be ({count}, {side}, {side}, channels)",
    )
    return node(lib.ggml_win_unpart(core.room(), a.p, w0, h0, side), core, ndim=3)


def get_rel_pos(a: Tensor, qh: int, kh: int) -> Tensor:
    """Rows of ``a`` (2 * n - 1, k) f16 by relative position: [i, j] is row n - 1 - j + i, (n, n, k); qh = kh = n.

    Raises:
        ShapeError: another number of rows. ArgumentError: ``qh`` is not ``kh``.
    """
    core = home(a)
    expect_dtype(a, "f16", use="get_rel_pos")
    expect_plain(a, "get_rel_pos")
    n = integer(qh, "get_rel_pos", "qh", 1, _SIDE)
    integer(kh, "get_rel_pos", "kh, equal to qh,", n, n)
    expect(a.p.ne[1] == 2 * n - 1, lambda: f"get_rel_pos: {a.label} should have {2 * n - 1} rows")
    expect_extents("get_rel_pos", (a.p.ne[0], n, n))
    return node(lib.ggml_get_rel_pos(core.room(), a.p, n, n), core, ndim=3)


def add_rel_pos(a: Tensor, pw: Tensor, ph: Tensor) -> Tensor:
    """``a`` (heads, queries, n * n) plus ``pw`` over columns and ``ph`` over rows of n x n keys, all f32.

    ``pw``, ``ph`` are (heads, y, x, n) with y * x queries.

    Raises:
        ShapeError: sizes that do not fit.
    """
    core = home(a, pw, ph)
    expect_f32("add_rel_pos", a, pw, ph)
    expect_same_shape(pw, ph, "add_rel_pos")
    ne, ne_p = a.p.ne, pw.p.ne
    expect(
        ne_p[3] == ne[2] and ne_p[0] * ne_p[0] == ne[0] and ne_p[1] * ne_p[2] == ne[1] and ne[3] == 1,
        lambda: f"add_rel_pos: {pw.label} does not fit {a.label}",
    )
    return node(lib.ggml_add_rel_pos(core.room(), a.p, pw.p, ph.p), core, a)
