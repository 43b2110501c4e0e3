"""Normalizations over the last axis."""

from __future__ import annotations

from kit.core.native import ffi, lib
from kit.core.ops._base import expect, home, node
from kit.core.tensor import Tensor


def rms_norm(a: Tensor, eps: float) -> Tensor:
    """``a / sqrt(mean(a**2) + eps)`` over the last axis."""
    core = home(a)
    return node(lib.ggml_rms_norm(core.room(), a.p, eps), core, a)


def soft_max(a: Tensor) -> Tensor:
    """Softmax over the last axis."""
    core = home(a)
    return node(lib.ggml_soft_max(core.room(), a.p), core, a)


def soft_max_ext(a: Tensor, mask: Tensor | None, scale: float, max_bias: float = 0.0) -> Tensor:
    """``softmax(a * scale + mask)`` over the last axis; ``mask`` (f16 or f32) has ``a``'s last two axes.

    Raises:
        ShapeError: ``mask`` does not cover ``a``.
    """
    core = home(a) if mask is None else home(a, mask)
    if mask is not None:
        ne, found = a.p.ne, mask.p.ne
        expect(
            found[0] == ne[0] and found[1] >= ne[1] and ne[2] % found[2] == 0 and ne[3] % found[3] == 0,
            f"soft_max_ext: mask {mask.label} does not cover {a.label}",
        )
    return node(lib.ggml_soft_max_ext(core.room(), a.p, ffi.NULL if mask is None else mask.p, scale, max_bias), core, a)
