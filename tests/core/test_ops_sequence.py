"""Attention, rotations and recurrences against step-by-step sums in numpy float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kit import ops

FLOAT = 5e-6  # float32 sums of some hundred terms


def close(found, expected, bound=FLOAT):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= bound * max(1.0, np.abs(expected).max())


def exact(tensor):
    return tensor.numpy().astype(np.float64)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotate(x, angles, halves):
    """Turn the pairs of the last axis; x (tokens, heads, dims), angles (tokens, dims / 2)."""
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = x.copy()
    first, second = np.split(x, 2, -1) if halves else (x[..., ::2], x[..., 1::2])
    a, b = first * cos - second * sin, first * sin + second * cos
    if halves:
        return np.concatenate([a, b], -1)
    out[..., ::2], out[..., 1::2] = a, b
    return out


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("dims", [8, 6])
def test_rope_turns_pairs_by_position(bench, mode, dims):
    x, positions = bench.normal(5, 3, 8), np.array([0, 1, 7, 100, 3])
    angles = positions[:, None] * 10000.0 ** (-2 * np.arange(dims // 2) / dims)
    expected = exact(x)
    expected[..., :dims] = rotate(expected[..., :dims], angles, mode == 2)
    close(bench.value(ops.rope(x, bench.tensor(positions, "i32"), dims, mode)), expected, 1e-5)  # angles in float32


def test_rope_ext_divides_by_factors_and_scales(bench):
    x, positions = bench.normal(4, 2, 8), np.array([5, 6, 7, 8])
    factors = bench.tensor([1.0, 2.0, 3.0, 4.0])
    angles = 0.5 * positions[:, None] * 500.0 ** (-2 * np.arange(4) / 8) / exact(factors)
    node = ops.rope_ext(
        x, bench.tensor(positions, "i32"), factors, n_dims=8, freq_base=500.0, freq_scale=0.5, attn_factor=1.5
    )
    close(bench.value(node), 1.5 * rotate(exact(x), angles, False), 1e-5)


def test_rope_multi_takes_a_position_per_section(bench):
    x = bench.normal(3, 2, 8)
    positions = bench.random.integers(0, 50, (4, 3))
    section = np.array([0, 0, 1, 2])  # of the four pairs, for sections 2, 1, 1, 0
    angles = positions[section].T * 10000.0 ** (-2 * np.arange(4) / 8)
    node = ops.rope_multi(x, bench.tensor(positions.reshape(-1), "i32"), None, n_dims=8, sections=(2, 1, 1, 0))
    close(bench.value(node), rotate(exact(x), angles, True), 1e-5)


def test_rope_for_vision_counts_angles_in_each_section(bench):
    x = bench.normal(3, 2, 8)
    positions = bench.random.integers(0, 50, (4, 3))
    theta = 10000.0 ** (-2 * np.array([0, 1, 0, 1]) / 4)  # two pairs of y, two of x; n_dims is 4
    angles = positions[[0, 0, 1, 1]].T * theta
    node = ops.rope_multi(x, bench.tensor(positions.reshape(-1), "i32"), None, n_dims=4, sections=(2, 2, 0, 0), mode=24)
    close(bench.value(node), rotate(exact(x), angles, True), 1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_flash_attention_is_attention(bench, dtype, tokens):
    q, mask = bench.normal(6, tokens, 32), np.triu(np.full((tokens, 40), -np.inf), 36 - tokens)
    k, v = bench.normal(2, 40, 32, dtype=dtype), bench.normal(2, 40, 16, dtype=dtype)
    keys, values = (np.repeat(exact(t), 3, 0) for t in (k, v))
    weights = softmax(exact(q) @ keys.transpose(0, 2, 1) / math.sqrt(32) + mask)
    node = ops.flash_attn_ext(q, k, v, bench.tensor(mask, "f16"))
    close(bench.value(node), (weights @ values).transpose(1, 0, 2), 5e-3)  # ggml rounds queries and sums in float16


def test_flash_attention_with_cap_and_sinks(bench):
    q, k, v, sinks = bench.normal(2, 3, 16), bench.normal(2, 9, 16), bench.normal(2, 9, 16), bench.normal(2)
    logits = 2.0 * np.tanh(exact(q) @ exact(k).transpose(0, 2, 1) * 0.5 / 2.0)
    wide = np.concatenate([logits, np.broadcast_to(exact(sinks)[:, None, None], (2, 3, 1))], -1)
    expected = (softmax(wide)[..., :-1] @ exact(v)).transpose(1, 0, 2)
    node = ops.flash_attn_ext(q, k, v, None, scale=0.5, logit_softcap=2.0, sinks=sinks)
    close(bench.value(node), expected, 5e-3)


def test_ssm_conv_is_a_sliding_product(bench):
    x, kernel = bench.normal(2, 5, 3 + 7), bench.normal(5, 4)
    windows = np.lib.stride_tricks.sliding_window_view(exact(x), 4, -1)
    close(bench.value(ops.ssm_conv(x, kernel)), np.einsum("sitk,ik->sti", windows, exact(kernel)))


@pytest.mark.parametrize("mamba2", [True, False])
def test_ssm_scan_steps_through_tokens(bench, mamba2):
    seqs, tokens, heads, dim, state, groups = 2, 3, 4, (8 if mamba2 else 1), 16, 2
    s, x = bench.normal(3, heads, dim, state), bench.normal(seqs, tokens, heads, dim)
    dt, b, c = bench.normal(seqs, tokens, heads), *(bench.normal(seqs, tokens, groups, state) for _ in "bc")
    a = bench.tensor(-np.abs(bench.random.standard_normal((heads, 1 if mamba2 else state))))
    ids = np.array([2, 0])
    now, out = exact(s)[ids], np.zeros((seqs, tokens, heads, dim))
    for t in range(tokens):
        step = np.log1p(np.exp(exact(dt)[:, t]))
        left, right = (np.repeat(exact(m)[:, t], heads // groups, 1) for m in (b, c))
        decay = np.exp(step[..., None] * exact(a))
        now = now * decay[:, :, None] + (step[..., None] * exact(x)[:, t])[..., None] * left[:, :, None]
        out[:, t] = (now * right[:, :, None]).sum(-1)
    node = ops.ssm_scan(s, x, dt, a, b, c, bench.tensor(ids, "i32"))
    close(bench.value(node), np.concatenate([out.reshape(-1), now.reshape(-1)]))


LINEAR = {"tokens": 6, "heads": 3, "seqs": 2}


def linear(bench, size, count):
    tokens, heads, seqs = LINEAR.values()
    inputs = [bench.tensor(0.5 * bench.random.standard_normal((tokens, heads, size))) for _ in range(count)]
    return inputs, bench.normal(seqs, heads * size * size)


def scan(inputs, state, size, step):
    """Run ``step(state, *token)`` over each sequence; state (heads, size, size)."""
    tokens, heads, seqs = LINEAR.values()
    values = [exact(t).reshape(seqs, tokens // seqs, heads, size) for t in inputs]
    states = exact(state).reshape(seqs, heads, size, size).copy()
    out = np.zeros((seqs, tokens // seqs, heads, size))
    for s in range(seqs):
        for t in range(tokens // seqs):
            out[s, t], states[s] = step(states[s], *(v[s, t] for v in values))
    return np.concatenate([out.reshape(-1), states.reshape(-1)]).reshape(-1, heads * size)


@pytest.mark.parametrize("size", [3, 8, 20])
def test_rwkv_wkv6(bench, size):
    (k, v, r, td), state = linear(bench, size, 4)
    tf = bench.normal(LINEAR["heads"], size)

    def step(s, k, v, r, td):
        kv = k[:, :, None] * v[:, None]
        return np.einsum("hi,hij->hj", r, exact(tf)[..., None] * kv + s), s * td[:, :, None] + kv

    close(bench.value(ops.rwkv_wkv6(k, v, r, tf, td, state)), scan([k, v, r, td], state, size, step))


@pytest.mark.parametrize("size", [64, 128])
def test_rwkv_wkv7(bench, size):
    (r, w, k, v, a, b), state = linear(bench, size, 6)

    def step(s, r, w, k, v, a, b):  # s (heads, value, key)
        sa = np.einsum("hij,hj->hi", s, a)
        s = s * w[:, None] + v[:, :, None] * k[:, None] + sa[:, :, None] * b[:, None]
        return np.einsum("hij,hj->hi", s, r), s

    close(bench.value(ops.rwkv_wkv7(r, w, k, v, a, b, state)), scan([r, w, k, v, a, b], state, size, step))


@pytest.mark.parametrize("size", [3, 8, 20])
def test_gated_linear_attn(bench, size):
    (k, v, q, g), state = linear(bench, size, 4)

    def step(s, k, v, q, g):
        s = s * g[:, :, None] + k[:, :, None] * v[:, None]
        return 0.7 * np.einsum("hi,hij->hj", q, s), s

    close(bench.value(ops.gated_linear_attn(k, v, q, g, state, 0.7)), scan([k, v, q, g], state, size, step))


@pytest.mark.parametrize("per_column", [False, True])
def test_gated_delta_net(bench, per_column):
    seqs, tokens, heads, size = 2, 3, 4, 8
    q, k = bench.normal(seqs, tokens, 2, size), bench.normal(seqs, tokens, 2, size)
    v, beta = bench.normal(seqs, tokens, heads, size), bench.tensor(bench.random.random((seqs, tokens, heads, 1)))
    g = bench.tensor(-bench.random.random((seqs, tokens, heads, size if per_column else 1)))
    state = bench.normal(seqs, heads, size, size)
    s, out = exact(state), np.zeros((seqs, tokens, heads, size))  # s (seqs, heads, value, key)
    for t in range(tokens):
        left, right = (np.tile(exact(m)[:, t], (1, 2, 1)) for m in (q, k))  # head h uses key head h % 2
        s = s * np.exp(exact(g)[:, t])[:, :, None]
        error = exact(v)[:, t] - np.einsum("shij,shj->shi", s, right)
        s = s + (exact(beta)[:, t] * error)[..., None] * right[:, :, None]
        out[:, t] = np.einsum("shij,shj->shi", s, left) / math.sqrt(size)
    node = ops.gated_delta_net(q, k, v, g, beta, state)
    close(bench.value(node).reshape(-1), np.concatenate([out.reshape(-1), s.reshape(-1)]))


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_lightning_indexer(bench, dtype):
    q, k = bench.normal(2, 3, 4, 32), bench.normal(2, 7, 1, 32, dtype=dtype)
    weights, mask = bench.normal(2, 1, 3, 4), bench.normal(1, 1, 3, 7, dtype="f16")
    scores = np.maximum(np.einsum("sthd,scd->sthc", exact(q), exact(k)[:, :, 0]), 0)
    expected = np.einsum("sthc,sth->stc", scores, exact(weights)[:, 0])[:, None] + exact(mask)
    close(bench.value(ops.lightning_indexer(q, k, weights, mask)), expected, 1e-5)


def test_hyper_connections(bench):
    tokens, n = 3, 6
    mixes, scale, base = bench.normal(tokens, 24), bench.normal(3), bench.normal(24)
    logits = exact(mixes)[:, 8:].reshape(tokens, 4, 4) * exact(scale)[2] + exact(base)[8:].reshape(4, 4)
    matrix = softmax(logits) + 1e-6  # tokens, source, target
    matrix /= matrix.sum(1, keepdims=True) + 1e-6
    for _ in range(2):
        matrix /= matrix.sum(2, keepdims=True) + 1e-6
        matrix /= matrix.sum(1, keepdims=True) + 1e-6
    comb = ops.dsv4_hc_comb(mixes, scale, base, 1e-6, 3)
    close(bench.value(comb), matrix, 1e-4)  # where eps enters is ggml's own choice
    x, streams, post = bench.normal(tokens, n), bench.normal(tokens, 4, n), bench.normal(tokens, 4)
    close(bench.value(ops.dsv4_hc_pre(streams, post)), np.einsum("tsn,ts->tn", exact(streams), exact(post)))
    expected = exact(x)[:, None] * exact(post)[..., None] + np.einsum("tsn,tsd->tdn", exact(streams), matrix)
    close(bench.value(ops.dsv4_hc_post(x, streams, post, comb)), expected, 1e-4)
