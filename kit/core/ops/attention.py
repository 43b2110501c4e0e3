"""Attention in one operation."""

from __future__ import annotations

import math

from kit.core.native import lib
from kit.core.ops._base import (
    convertible,
    expect,
    expect_dtype,
    expect_plain,
    expect_rows,
    expect_shape,
    given,
    home,
    node,
    present,
    real,
)
from kit.core.tensor import Tensor
from kit.errors import DTypeError


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None = None,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    sinks: Tensor | None = None,
    precise: bool = True,
) -> Tensor:
    """Attention of ``q`` (heads, tokens, dim) over ``k``, ``v`` (kv_heads, cells, dim): (tokens, heads, dim of v), f32.

    ``q`` is f32. ``mask`` (tokens, cells) is f16. ``scale`` defaults to 1/sqrt(dim). ``max_bias`` above 0
    multiplies the mask by ALiBi's slopes, ``logit_softcap`` above 0 is Gemma's, ``sinks`` (heads,) f32
    are further logits without a place in the result.

    Raises:
        ShapeError: sizes that do not fit. DTypeError: a mask that is not f16, keys ggml cannot multiply with.
    """
    core = home(q, k, v, *present(mask, sinks))
    _expect_fit(q, k, v)
    if mask is not None:
        expect_dtype(mask, "f16", use="flash_attn_ext")
        expect_plain(mask, "flash_attn_ext")
        expect(
            mask.p.ne[0] == k.p.ne[1]
            and mask.p.ne[1] >= q.p.ne[1]
            and q.p.ne[2] % mask.p.ne[2] == 0
            and q.p.ne[3] % mask.p.ne[3] == 0,
            lambda: f"flash_attn_ext: mask {mask.label} does not cover {q.label} over {k.label}",
        )
    factor = 1 / math.sqrt(q.p.ne[0]) if scale is None else real(scale, "flash_attn_ext", "scale")
    bias = real(max_bias, "flash_attn_ext", "max_bias", 0.0)
    cap = real(logit_softcap, "flash_attn_ext", "logit_softcap", 0.0)
    expect(bias == 0.0 or mask is not None, lambda: f"flash_attn_ext: max_bias needs a mask to multiply, for {q.label}")
    if sinks is not None:
        expect_dtype(sinks, "f32", use="flash_attn_ext")
        expect_plain(sinks, "flash_attn_ext")
        expect_shape(sinks, (int(q.p.ne[2]),), "flash_attn_ext", "sinks")
    raw = lib.ggml_flash_attn_ext(core.room(), q.p, k.p, v.p, given(mask), factor, bias, cap)
    if precise:
        lib.ggml_flash_attn_ext_set_prec(raw, lib.GGML_PREC_F32)
    if sinks is not None:
        lib.ggml_flash_attn_ext_add_sinks(raw, sinks.p)
    return node(raw, core, ndim=max(q.ndim, 3))


def _expect_fit(q: Tensor, k: Tensor, v: Tensor) -> None:
    expect_dtype(q, "f32", use="flash_attn_ext")
    for tensor in (q, k, v):
        expect_rows(tensor, "flash_attn_ext")
    if not convertible(int(k.p.type), product=True):
        raise DTypeError(f"flash_attn_ext: ggml cannot multiply with {k.dtype}, the type of {k.label}; use f16")
    if not convertible(int(v.p.type), readable=True):
        raise DTypeError(f"flash_attn_ext: ggml cannot read {v.dtype}, the type of {v.label}; use f16")
    expect(q.p.ne[0] == k.p.ne[0], lambda: f"flash_attn_ext: head sizes of {q.label} and {k.label} differ")
    expect(k.p.ne[1] == v.p.ne[1] and k.p.ne[2] == v.p.ne[2], lambda: f"flash_attn_ext: {k.label} and {v.label} differ")
    expect(
        q.p.ne[2] % k.p.ne[2] == 0, lambda: f"flash_attn_ext: the heads of {k.label} do not divide those of {q.label}"
    )
    expect(
        q.p.ne[3] == k.p.ne[3] == v.p.ne[3],
        lambda: f"flash_attn_ext: the first axes of {q.label}, {k.label} and {v.label} differ",
    )
