"""Rotation of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.core.native import ffi, lib
from kit.core.ops._base import (
    expect,
    expect_dtype,
    expect_plain,
    expect_rows,
    given,
    home,
    integer,
    node,
    present,
    real,
)
from kit.core.tensor import Tensor
from kit.errors import ArgumentError

#: what ``mode`` may be, as ggml numbers it
NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40
_INT_MAX = (1 << 31) - 1


def rope(a: Tensor, positions: Tensor, n_dims: int, mode: int = NORMAL) -> Tensor:
    """`rope_ext` with the plain frequencies ``10000 ** (-2 * i / n_dims)``."""
    return rope_ext(a, positions, None, n_dims=n_dims, mode=mode)


def rope_ext(
    a: Tensor,
    positions: Tensor,
    factors: Tensor | None,
    *,
    n_dims: int,
    mode: int = NORMAL,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Rotate the first ``n_dims`` of each head of ``a`` (tokens, heads, head_dim) by its position.

    ``mode`` 0 rotates neighbouring pairs (llama), 2 halves (NeoX). ``factors`` (head_dim / 2,) f32 divide
    the frequencies. The other arguments are YaRN's, as in ggml.h.

    Raises:
        ShapeError: not one position per token, odd ``n_dims``, or too few factors.
        DTypeError: ``a`` is not f32 or f16, positions not i32. ArgumentError: another mode.
    """
    if mode not in (NORMAL, NEOX):
        raise ArgumentError(f"rope_ext: mode is {mode!r}; give 0 or 2, or use rope_multi")
    core = _check("rope_ext", a, positions, factors, n_dims, 1)
    numbers = _numbers("rope_ext", n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    raw = lib.ggml_rope_ext(core.room(), a.p, positions.p, given(factors), n_dims, mode, *numbers)
    return node(raw, core, a)


def rope_multi(
    a: Tensor,
    positions: Tensor,
    factors: Tensor | None,
    *,
    n_dims: int,
    sections: Sequence[int],
    mode: int = MROPE,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Rotate by several positions per token, as Qwen-VL's vision models do; pairs are halves apart.

    ``positions`` (4 * tokens,) i32 holds first all of the first kind, then the second, and so on.
    ``sections``: how many of the pairs each kind rotates. ``mode`` 8 is M-RoPE, 40 the interleaved form,
    24 vision, whose ``n_dims`` is half of head_dim. Otherwise as `rope_ext`.

    Raises:
        ShapeError: sizes that do not fit. ArgumentError: another mode, or sections out of range.
    """
    if mode not in (MROPE, VISION, IMROPE):
        raise ArgumentError(f"rope_multi: mode is {mode!r}; give 8, 24 or 40, or use rope_ext")
    core = _check("rope_multi", a, positions, factors, n_dims, 4)
    head = int(a.p.ne[0])
    expect(
        mode != VISION or n_dims * 2 == head,
        lambda: f"rope_multi: in mode 24 n_dims is half the head size of {a.label}",
    )
    pairs = [integer(n, "rope_multi", "a section", 0, head) for n in sections]
    if len(pairs) != 4 or not any(pairs[:3]) or sum(pairs) > head:
        raise ArgumentError(f"rope_multi: sections are {list(sections)}; give 4 counts of pairs for {a.label}")
    numbers = _numbers("rope_multi", n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    counts = ffi.new("int[4]", pairs)
    raw = lib.ggml_rope_multi(core.room(), a.p, positions.p, given(factors), n_dims, counts, mode, *numbers)
    return node(raw, core, a)


def _check(use: str, a: Tensor, positions: Tensor, factors: Tensor | None, n_dims: Any, per_token: int) -> Any:
    core = home(a, positions, *present(factors))
    expect_dtype(a, "f32", "f16", use=use)
    expect_rows(a, use)
    expect_dtype(positions, "i32", use=use)
    expect_plain(positions, use)
    expect(
        a.p.ne[2] * per_token == positions.p.ne[0] == positions.size,
        lambda: (
            f"{use}: {positions.label} needs {per_token if per_token > 1 else 'one'} position{'s' * (per_token > 1)} "
            f"per token of {a.label}"
        ),
    )
    head = int(a.p.ne[0])
    dims = integer(n_dims, f"{use} of {a.label}", "n_dims", 1, _INT_MAX)
    expect(dims % 2 == 0 and dims <= head, lambda: f"{use}: cannot rotate {dims} dims of {a.label}")
    if factors is not None:
        expect_dtype(factors, "f32", use=use)
        expect_plain(factors, use)
        enough = factors.p.ne[0] >= (head + 1) // 2  # ggml reads one for each pair of the head, rotated or not
        expect(bool(enough), lambda: f"{use}: {factors.label} needs a factor for each pair of the heads of {a.label}")
    return core


def _numbers(use: str, n_ctx_orig: Any, *rest: Any) -> tuple[Any, ...]:
    names = ("freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")
    context = integer(n_ctx_orig, use, "n_ctx_orig", 0, _INT_MAX)
    return (context, *(real(value, use, name) for value, name in zip(rest, names, strict=True)))
