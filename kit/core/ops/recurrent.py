"""State-space models and linear attention: recurrences over tokens, all f32.

Most give outputs and new states in one tensor, one behind the other, as their docstrings say.
"""

from __future__ import annotations

from kit.core.native import lib
from kit.core.ops._base import (
    expect,
    expect_dtype,
    expect_extents,
    expect_f32,
    expect_plain,
    expect_rows,
    expect_shape,
    home,
    integer,
    node,
    real,
    shape4,
)
from kit.core.ops.matrix import within
from kit.core.tensor import Tensor


def ssm_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """Mamba's convolution: ``x`` (seqs, inner, width - 1 + tokens), ``kernel`` (inner, width) -> (seqs, tokens, inner).

    Raises:
        ShapeError: sizes that do not fit.
    """
    core = home(x, kernel)
    expect_f32("ssm_conv", x, kernel)
    ne, ne_k = x.p.ne, kernel.p.ne
    expect(
        ne[1] == ne_k[1] and ne[3] == 1 and ne_k[2] == 1 and ne_k[3] == 1 and ne[0] >= ne_k[0],
        lambda: (
            f"ssm_conv: {x.label} and {kernel.label} do not fit: (seqs, inner, width - 1 + tokens) and (inner, width)"
        ),
    )
    return node(lib.ggml_ssm_conv(core.room(), x.p, kernel.p), core, ndim=3)


def ssm_scan(
    s: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, ids: Tensor, n_states: int = 1
) -> Tensor:
    """Mamba's scan. ``s`` (states, heads, head_dim, d_state), ``x`` (seqs, tokens, heads, head_dim).

    ``dt`` (seqs, tokens, heads), ``a`` (heads, 1), or (heads, d_state) of Mamba-1, ``b``, ``c`` (seqs, tokens,
    groups, d_state), ``ids`` (seqs,) i32: which state each sequence starts from; checked at compute, one out
    of range raises GgmlAbort. The result has one axis: the outputs in the shape of ``x``, then for each of
    the last ``n_states`` steps the states (seqs, heads, head_dim, d_state).

    Raises:
        ShapeError: sizes that do not fit. DTypeError: not f32 and i32.
    """
    core = home(s, x, dt, a, b, c, ids)
    expect_f32("ssm_scan", s, x, dt, a, b, c)
    expect_dtype(ids, "i32", use="ssm_scan")
    expect_plain(ids, "ssm_scan")
    states, heads, head_dim, d_state = shape4(s)
    seqs, tokens, _, _ = shape4(x)
    expect_shape(x, (seqs, tokens, heads, head_dim), "ssm_scan", "x")
    expect_shape(dt, (seqs, tokens, heads), "ssm_scan", "dt")
    groups = int(b.p.ne[1])
    expect_shape(b, (seqs, tokens, groups, d_state), "ssm_scan", "b")
    expect_shape(c, (seqs, tokens, groups, d_state), "ssm_scan", "c")
    expect(heads % groups == 0, lambda: f"ssm_scan: the {groups} groups of {b.label} do not divide {heads} heads")
    expect_shape(a, (heads, d_state if a.p.ne[0] != 1 else 1), "ssm_scan", "a")
    expect_shape(ids, (seqs,), "ssm_scan", "ids")
    k = integer(n_states, "ssm_scan", "n_states", 1, tokens if a.p.ne[0] == 1 else 1)
    expect_extents("ssm_scan", (k + 1, heads, head_dim, d_state, seqs))
    checked = within(ids, states)
    raw = lib.ggml_ssm_scan(core.room(), s.p, x.p, dt.p, a.p, b.p, c.p, checked.p, k)
    return node(raw, core, ndim=1)


def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> Tensor:
    """RWKV-6: all (tokens, heads, size) but ``tf`` (heads, size) and ``state`` (seqs, heads * size**2).

    Gives (tokens + seqs * size, heads * size): the outputs, then the new states.

    Raises:
        ShapeError: sizes that do not fit, or tokens that the sequences do not divide.
    """
    core = home(k, v, r, tf, td, state)
    _expect_linear("rwkv_wkv6", state, k, v, r, td)
    expect_f32("rwkv_wkv6", tf)
    expect(
        tf.size == k.p.ne[0] * k.p.ne[1],
        lambda: f"rwkv_wkv6: {tf.label} should have a number for each column of {k.label}",
    )
    raw = lib.ggml_rwkv_wkv6(core.room(), k.p, v.p, r.p, tf.p, td.p, state.p)
    return node(raw, core, ndim=2)


def rwkv_wkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """RWKV-7: all (tokens, heads, size) but ``state`` (seqs, heads * size * size); result as `rwkv_wkv6`.

    Raises:
        ShapeError: sizes that do not fit, tokens that the sequences do not divide, or heads whose size is
            no multiple of 64, past whose end ggml would write.
    """
    core = home(r, w, k, v, a, b, state)
    expect(
        r.p.ne[0] % 64 == 0,
        lambda: f"rwkv_wkv7: ggml needs a head size that is a multiple of 64; {r.label} has another",
    )
    _expect_linear("rwkv_wkv7", state, r, w, k, v, a, b)
    raw = lib.ggml_rwkv_wkv7(core.room(), r.p, w.p, k.p, v.p, a.p, b.p, state.p)
    return node(raw, core, ndim=2)


def gated_linear_attn(k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, scale: float) -> Tensor:
    """Gated linear attention: all (tokens, heads, size) but ``state`` (seqs, heads * size**2); as `rwkv_wkv6`.

    Raises:
        ShapeError: sizes that do not fit, or tokens that the sequences do not divide.
    """
    core = home(k, v, q, g, state)
    _expect_linear("gated_linear_attn", state, k, v, q, g)
    factor = real(scale, "gated_linear_attn", "scale")
    raw = lib.ggml_gated_linear_attn(core.room(), k.p, v.p, q.p, g.p, state.p, factor)
    return node(raw, core, ndim=2)


def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, n_states: int = 1
) -> Tensor:
    """Gated delta rule: ``q``, ``k`` (seqs, tokens, k_heads, size), ``v`` (seqs, tokens, heads, size).

    ``g`` (seqs, tokens, heads, 1 or size), ``beta`` (seqs, tokens, heads, 1), ``state`` (seqs, heads, size,
    size). Gives (seqs * tokens + n_states * seqs * size, heads * size): outputs, then the last states.

    Raises:
        ShapeError: sizes that do not fit. DTypeError: not f32.
    """
    core = home(q, k, v, g, beta, state)
    for tensor in (q, k, v):
        expect_dtype(tensor, "f32", use="gated_delta_net")
        expect_rows(tensor, "gated_delta_net")
    expect_f32("gated_delta_net", g, beta, state)
    seqs, tokens, heads, size = shape4(v)
    k_heads = int(k.p.ne[1])
    expect_shape(q, (seqs, tokens, k_heads, size), "gated_delta_net", "q")
    expect_shape(k, (seqs, tokens, k_heads, size), "gated_delta_net", "k")
    expect(heads % k_heads == 0, lambda: f"gated_delta_net: the heads of {k.label} do not divide those of {v.label}")
    expect_shape(g, (seqs, tokens, heads, size if g.p.ne[0] != 1 else 1), "gated_delta_net", "g")
    expect_shape(beta, (seqs, tokens, heads, 1), "gated_delta_net", "beta")
    expect_shape(state, (seqs, heads, size, size), "gated_delta_net", "state")
    kept = integer(n_states, "gated_delta_net", "n_states", 1, tokens)
    expect_extents("gated_delta_net", (size * heads, tokens * seqs + kept * size * seqs))
    raw = lib.ggml_gated_delta_net(core.room(), q.p, k.p, v.p, g.p, beta.p, state.p, kept)
    return node(raw, core, ndim=2)


def _expect_linear(use: str, state: Tensor, first: Tensor, *others: Tensor) -> None:
    expect_f32(use, state, first, *others)
    size, heads, tokens, batch = (int(n) for n in first.p.ne)
    expect(batch == 1, lambda: f"{use}: {first.label} should be (tokens, heads, size)")
    for tensor in others:
        expect_shape(tensor, (tokens, heads, size), use, "input")
    seqs = int(state.p.ne[1])
    expect(
        state.size == seqs * heads * size * size,
        lambda: f"{use}: the state {state.label} should be (seqs, {heads * size * size}) for {first.label}",
    )
    expect(
        tokens % seqs == 0, lambda: f"{use}: {tokens} tokens are not divided by the {seqs} sequences of {state.label}"
    )
