"""Attention in one operation, and the rotation of positions."""

from __future__ import annotations

import math

from kit.core.native import ffi, lib
from kit.core.ops._base import expect, expect_dtype, home, node
from kit.core.tensor import Tensor


def rope_ext(
    a: Tensor,
    positions: Tensor,
    factors: Tensor | None,
    *,
    n_dims: int,
    mode: int = 0,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Rotate the first ``n_dims`` of each head of ``a`` (tokens, heads, head_dim) by its position.

    ``mode`` 0 rotates neighbouring pairs (llama), 2 halves (NeoX). ``factors`` (n_dims / 2,) f32 divide
    the frequencies. The other arguments are YaRN's, as in ggml.h.

    Raises:
        ShapeError: not one position per token, or odd ``n_dims``.
    """
    core = home(a, positions) if factors is None else home(a, positions, factors)
    expect_dtype(positions, "i32", use="rope_ext")
    expect(a.p.ne[2] == positions.p.ne[0], f"rope_ext: {positions.label} needs one position per token of {a.label}")
    expect(n_dims % 2 == 0 and 0 < n_dims <= a.p.ne[0], f"rope_ext: cannot rotate {n_dims} dims of {a.label}")
    raw = lib.ggml_rope_ext(
        core.room(),
        a.p,
        positions.p,
        ffi.NULL if factors is None else factors.p,
        n_dims,
        mode,
        n_ctx_orig,
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    )
    return node(raw, core, a)


def flash_attn_ext(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float | None = None, precise: bool = True
) -> Tensor:
    """Attention of ``q`` (heads, tokens, dim) over ``k``, ``v`` (kv_heads, cells, dim): (tokens, heads, dim).

    ``mask`` (tokens, cells) is f16. ``scale`` defaults to 1/sqrt(dim).

    Raises:
        ShapeError: sizes that do not fit. DTypeError: a mask that is not f16.
    """
    core = home(q, k, v) if mask is None else home(q, k, v, mask)
    expect(q.p.ne[0] == k.p.ne[0], f"flash_attn_ext: head sizes of {q.label} and {k.label} differ")
    expect(k.p.ne[1] == v.p.ne[1] and k.p.ne[2] == v.p.ne[2], f"flash_attn_ext: {k.label} and {v.label} differ")
    expect(q.p.ne[2] % k.p.ne[2] == 0, f"flash_attn_ext: the heads of {k.label} do not divide those of {q.label}")
    if mask is not None:
        expect_dtype(mask, "f16", use="flash_attn_ext")
        expect(
            mask.p.ne[0] == k.p.ne[1] and mask.p.ne[1] >= q.p.ne[1] and mask.contiguous,
            f"flash_attn_ext: mask {mask.label} does not cover {q.label} over {k.label}",
        )
    factor = 1 / math.sqrt(q.p.ne[0]) if scale is None else scale
    raw = lib.ggml_flash_attn_ext(core.room(), q.p, k.p, v.p, ffi.NULL if mask is None else mask.p, factor, 0.0, 0.0)
    if precise:
        lib.ggml_flash_attn_ext_set_prec(raw, lib.GGML_PREC_F32)
    return node(raw, core, q, ndim=3)
