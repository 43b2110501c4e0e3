"""What DeepSeek's newer models need: the lightning indexer and hyper-connections (arXiv 2512.24880)."""

from __future__ import annotations

from kit.core.native import lib
from kit.core.ops._base import (
    convertible,
    expect_dtype,
    expect_f32,
    expect_rows,
    expect_shape,
    home,
    integer,
    node,
    real,
    shape4,
)
from kit.core.tensor import Tensor
from kit.errors import DTypeError, ShapeError


def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """``sum(weights * relu(q @ k))`` over heads, plus mask: (streams, 1, tokens, cells), f32.

    ``q`` (streams, tokens, heads, dim) f32, ``k`` (streams, cells, 1, dim), ``weights`` (streams, 1, tokens,
    heads) f32, ``mask`` (streams or a divisor, 1, tokens, cells) f16.

    Raises:
        ShapeError: sizes that do not fit. DTypeError: other types.
    """
    core = home(q, k, weights, mask)
    use = "lightning_indexer"
    expect_dtype(q, "f32", use=use)
    expect_dtype(weights, "f32", use=use)
    expect_dtype(mask, "f16", use=use)
    if not convertible(int(k.p.type), readable=True) or k.dtype in ("i32", "i64", "i16", "i8", "f64"):
        raise DTypeError(f"{use}: ggml cannot read {k.dtype}, the type of {k.label}; use f16")
    for tensor in (q, k, weights, mask):
        expect_rows(tensor, use)
    streams, tokens, heads, dim = shape4(q)
    cells, masks = int(k.p.ne[2]), int(mask.p.ne[3])
    expect_shape(k, (streams, cells, 1, dim), use, "k")
    expect_shape(weights, (streams, 1, tokens, heads), use, "weights")
    expect_shape(mask, (masks, 1, tokens, cells), use, "mask")
    if streams % masks:
        raise ShapeError(f"{use}: the first axis of {mask.label} does not divide that of {q.label}")
    return node(lib.ggml_lightning_indexer(core.room(), q.p, k.p, weights.p, mask.p), core, ndim=4)


def dsv4_hc_comb(mixes: Tensor, scale: Tensor, base: Tensor, eps: float, n_iter: int) -> Tensor:
    """Mixing matrices of 4 streams, made doubly stochastic in ``n_iter`` rounds: (tokens, 4 sources, 4 targets).

    ``mixes`` (tokens, 24), ``scale`` (3,) or longer, ``base`` (24,), all f32; the last 16 of the 24 count.

    Raises:
        ShapeError: sizes that do not fit. ArgumentError: numbers out of range.
    """
    core = home(mixes, scale, base)
    use = "dsv4_hc_comb"
    expect_f32(use, mixes, scale, base)
    expect_shape(mixes, (int(mixes.p.ne[1]), 24), use, "mixes")
    expect_shape(base, (24,), use, "base")
    expect_shape(scale, (max(3, int(scale.p.ne[0])),), use, "scale")
    rounds = integer(n_iter, use, "n_iter", 1, 1 << 16)
    raw = lib.ggml_dsv4_hc_comb(core.room(), mixes.p, scale.p, base.p, real(eps, use, "eps", 0.0), rounds)
    return node(raw, core, ndim=3)


def dsv4_hc_pre(x: Tensor, weights: Tensor) -> Tensor:
    """``sum(x * weights)`` over streams: ``x`` (tokens, streams, n), ``weights`` (tokens, streams) -> (tokens, n), f32.

    Raises:
        ShapeError: sizes that do not fit.
    """
    core = home(x, weights)
    expect_f32("dsv4_hc_pre", x, weights)
    n, streams, tokens, _ = (int(extent) for extent in x.p.ne)
    expect_shape(x, (tokens, streams, n), "dsv4_hc_pre", "x")
    expect_shape(weights, (tokens, streams), "dsv4_hc_pre", "weights")
    return node(lib.ggml_dsv4_hc_pre(core.room(), x.p, weights.p), core, ndim=2)


def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """``x * post + comb.T @ residual`` per token: (tokens, streams, n), f32.

    ``x`` (tokens, n), ``residual`` (tokens, streams, n), ``post`` (tokens, streams), ``comb`` (tokens,
    sources, targets).

    Raises:
        ShapeError: sizes that do not fit.
    """
    core = home(x, residual, post, comb)
    use = "dsv4_hc_post"
    expect_f32(use, x, residual, post, comb)
    n, tokens, _, _ = (int(extent) for extent in x.p.ne)
    streams = int(residual.p.ne[1])
    expect_shape(x, (tokens, n), use, "x")
    expect_shape(residual, (tokens, streams, n), use, "residual")
    expect_shape(post, (tokens, streams), use, "post")
    expect_shape(comb, (tokens, streams, streams), use, "comb")
    return node(lib.ggml_dsv4_hc_post(core.room(), x.p, residual.p, post.p, comb.p), core, ndim=3)
