"""Normalizations; over the last axis where nothing else is said. All take f32."""

from __future__ import annotations

from typing import Any

from kit.core.native import lib
from kit.core.ops._base import (
    expect,
    expect_dtype,
    expect_plain,
    expect_rows,
    expect_shape,
    given,
    home,
    integer,
    node,
    present,
    real,
)
from kit.core.tensor import Tensor


def norm(a: Tensor, eps: float) -> Tensor:
    """``(a - mean(a)) / sqrt(var(a) + eps)`` over the last axis."""
    return _rows(lib.ggml_norm, "norm", a, eps)


def rms_norm(a: Tensor, eps: float) -> Tensor:
    """``a / sqrt(mean(a**2) + eps)`` over the last axis."""
    return _rows(lib.ggml_rms_norm, "rms_norm", a, eps)


def group_norm(a: Tensor, n_groups: int, eps: float) -> Tensor:
    """`norm` over groups of channels of ``a`` (batch, channels, height, width).

    The channels are cut into ``n_groups`` of ``ceil(channels / n_groups)``, the last of what is left.

    Raises:
        ArgumentError: not 1 to ``channels`` groups.
    """
    core = home(a)
    expect_dtype(a, "f32", use="group_norm")
    expect_plain(a, "group_norm")
    groups = integer(n_groups, "group_norm", f"n_groups of {a.label}", 1, int(a.p.ne[2]))
    return node(lib.ggml_group_norm(core.room(), a.p, groups, real(eps, "group_norm", "eps", 0.0)), core, a)


def l2_norm(a: Tensor, eps: float) -> Tensor:
    """``a / max(sqrt(sum(a**2)), eps)`` over the last axis."""
    return _rows(lib.ggml_l2_norm, "l2_norm", a, eps)


def soft_max(a: Tensor) -> Tensor:
    """Softmax over the last axis."""
    core = home(a)
    expect_dtype(a, "f32", use="soft_max")
    expect_plain(a, "soft_max")
    return node(lib.ggml_soft_max(core.room(), a.p), core, a)


def soft_max_ext(
    a: Tensor, mask: Tensor | None, scale: float, max_bias: float = 0.0, *, sinks: Tensor | None = None
) -> Tensor:
    """``softmax(a * scale + mask)`` over the last axis; ``mask`` (f16 or f32) has ``a``'s last two axes.

    ``a`` is (heads, tokens, cells). ``max_bias`` above 0 multiplies the mask by ALiBi's slope of the head.
    ``sinks`` (heads,) f32 are further logits that take part in the sum and get no place in the result.

    Raises:
        ShapeError: ``mask`` does not cover ``a``, a bias without mask, sinks of another length.
        DTypeError: other types.
    """
    core = home(a, *present(mask, sinks))
    expect_dtype(a, "f32", use="soft_max_ext")
    expect_plain(a, "soft_max_ext")
    factor, bias = real(scale, "soft_max_ext", "scale"), real(max_bias, "soft_max_ext", "max_bias", 0.0)
    if mask is not None:
        expect_dtype(mask, "f16", "f32", use="soft_max_ext")
        expect_plain(mask, "soft_max_ext")
        ne, found = a.p.ne, mask.p.ne
        expect(
            found[0] == ne[0] and found[1] >= ne[1] and ne[2] % found[2] == 0 and ne[3] % found[3] == 0,
            lambda: f"soft_max_ext: mask {mask.label} does not cover {a.label}",
        )
    expect(bias == 0.0 or mask is not None, lambda: f"soft_max_ext: max_bias needs a mask to multiply, for {a.label}")
    if sinks is not None:
        _expect_sinks(sinks, int(a.p.ne[2]), "soft_max_ext")
    raw = lib.ggml_soft_max_ext(core.room(), a.p, given(mask), factor, bias)
    if sinks is not None:
        lib.ggml_soft_max_add_sinks(raw, sinks.p)
    return node(raw, core, a)


def _expect_sinks(sinks: Tensor, n_heads: int, use: str) -> None:
    expect_dtype(sinks, "f32", use=use)
    expect_plain(sinks, use)
    expect_shape(sinks, (n_heads,), use, "sinks")


def _rows(function: Any, name: str, a: Tensor, eps: float) -> Tensor:
    core = home(a)
    expect_dtype(a, "f32", use=name)
    expect_rows(a, name)
    return node(function(core.room(), a.p, real(eps, name, "eps", 0.0)), core, a)
