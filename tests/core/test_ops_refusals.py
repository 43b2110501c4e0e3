"""Each refusal is the right KitError and names the tensors it is about."""

from __future__ import annotations

import numpy as np
import pytest

import kit
from kit import ops

S, D, A = kit.ShapeError, kit.DTypeError, kit.ArgumentError


@pytest.fixture
def t(ctx):
    """Makes leaves called a, b, c, ... in the order of their making."""
    names = iter("abcdefgh")
    return lambda *shape, dtype="f32": ctx.tensor(shape, dtype, next(names))


REFUSALS = {
    "add: neither repeats": (S, "a.*b", lambda t: t(3, 4) + t(3, 5)),
    "add: types": (D, "a.*f32.*b.*f16", lambda t: t(3, 4) + t(3, 4, dtype="f16")),
    "add: integers": (D, "a.*i32", lambda t: t(3, dtype="i32") + t(3, dtype="i32")),
    "add: rows with gaps": (S, r"cont\(\)", lambda t: t(3, 4).T + t(4, 3)),
    "add: quantized and another shape": (S, "a.*b", lambda t: t(3, 32, dtype="q8_0") + t(1, 32)),
    "sub: only the second repeats": (S, "b.*a", lambda t: t(1, 4) - t(3, 4)),
    "mul: quantized": (D, "a.*q8_0", lambda t: t(3, 32, dtype="q8_0") * t(3, 32)),
    "div by zero": (A, "a", lambda t: t(3) / 0),
    "add_cast: floats": (D, "a.*add", lambda t: ops.add_cast(t(3, 4), t(3, 4), "f32")),
    "add_cast: target": (D, "a", lambda t: ops.add_cast(t(3, 4, dtype="f16"), t(3, 4), "q8_0")),
    "add_id: sizes": (S, "c.*b.*a", lambda t: ops.add_id(t(2, 2, 4), t(5, 4), t(3, 2, dtype="i32"))),
    "acc: outside": (S, "b.*a", lambda t: ops.acc(t(4, 8), t(2, 4), offset=120)),
    "set: outside": (S, "b.*a", lambda t: ops.set(t(4, 8), t(2, 4), nb1=200)),
    "set: types": (D, "b", lambda t: ops.set(t(4, dtype="i32"), t(2))),
    "silu: integers": (D, "a.*i32", lambda t: ops.silu(t(3, dtype="i32"))),
    "silu: bf16": (D, "a.*bf16", lambda t: ops.silu(t(3, dtype="bf16"))),
    "scale: f16": (D, "a.*f16", lambda t: t(3, dtype="f16") * 2),
    "scale: a view": (S, r"cont\(\)", lambda t: t(3, 4)[:, 1:] * 2),
    "clamp: order": (A, "low 2", lambda t: ops.clamp(t(3), 2, 1)),
    "leaky_relu: NaN": (A, "negative_slope", lambda t: ops.leaky_relu(t(3), float("nan"))),
    "swiglu: odd": (S, "a", lambda t: ops.swiglu(t(3, 5))),
    "swiglu_split: shapes": (S, "a.*b", lambda t: ops.swiglu_split(t(3, 4), t(3, 5))),
    "swiglu_split: types": (D, "a.*b", lambda t: ops.swiglu_split(t(3, 4), t(3, 4, dtype="f16"))),
    "rms_norm: f16": (D, "a.*f16", lambda t: ops.rms_norm(t(3, dtype="f16"), 1e-5)),
    "rms_norm: eps": (A, "eps", lambda t: ops.rms_norm(t(3), -1.0)),
    "group_norm: groups": (A, "a", lambda t: ops.group_norm(t(2, 4, 3, 3), 5, 1e-5)),
    "soft_max: a view": (S, "soft_max", lambda t: ops.soft_max(t(3, 4).T)),
    "soft_max_ext: mask": (S, "b.*a", lambda t: ops.soft_max_ext(t(2, 3, 8), t(2, 8), 1.0)),
    "soft_max_ext: bias without mask": (S, "a", lambda t: ops.soft_max_ext(t(2, 3, 8), None, 1.0, 8.0)),
    "soft_max_ext: sinks": (S, "b", lambda t: ops.soft_max_ext(t(2, 3, 8), None, 1.0, sinks=t(3))),
    "argmax: axes": (S, "a", lambda t: ops.argmax(t(2, 3, 4))),
    "argsort: word": (A, "order", lambda t: ops.argsort(t(3), "up")),
    "top_k: k": (A, "a", lambda t: ops.top_k(t(3, 8), 9)),
    "top_k: zero": (A, "a", lambda t: ops.argsort_top_k(t(3, 8), 0)),
    "count_equal: floats": (D, "a", lambda t: ops.count_equal(t(3), t(3))),
    "mul_mat: last axes": (S, "a.*b", lambda t: ops.mul_mat(t(5, 4), t(3, 8))),
    "mul_mat: leading axes": (S, "a.*b", lambda t: ops.mul_mat(t(2, 5, 4), t(3, 3, 4))),
    "mul_mat: transposed": (S, "mul_mat", lambda t: ops.mul_mat(t(4, 5).T, t(3, 4))),
    "mul_mat: integers": (D, "a.*i32|i32.*a", lambda t: ops.mul_mat(t(5, 4, dtype="i32"), t(3, 4))),
    "mul_mat: second": (D, "b.*f16", lambda t: ops.mul_mat(t(5, 32, dtype="q4_0"), t(3, 32, dtype="f16"))),
    "matmul: inner axes": (S, "a.*b", lambda t: t(3, 4) @ t(5, 6)),
    "matmul: a vector": (S, "missing", lambda t: t(3, 4) @ t(4)),
    "mul_mat_id: ids": (S, "c.*b", lambda t: ops.mul_mat_id(t(4, 6, 8), t(3, 2, 8), t(2, 2, dtype="i32"))),
    "out_prod: sizes": (S, "a.*b", lambda t: ops.out_prod(t(5, 3), t(4, 7))),
    "get_rows: float indices": (D, "b", lambda t: ops.get_rows(t(5, 4), t(2))),
    "get_rows: leading axes": (S, "b.*a", lambda t: ops.get_rows(t(2, 5, 4), t(3, dtype="i32"))),
    "set_rows: row length": (S, "b.*a", lambda t: ops.set_rows(t(5, 4), t(2, 3), t(2, dtype="i64"))),
    "set_rows: count": (S, "b.*c.*a", lambda t: ops.set_rows(t(5, 4), t(2, 4), t(3, dtype="i64"))),
    "set_rows: into integers": (D, "a.*i32", lambda t: ops.set_rows(t(5, 4, dtype="i32"), t(2, 4), t(2, dtype="i64"))),
    "reshape: count": (S, "a", lambda t: t(3, 4).reshape(5, 2)),
    "reshape: two free": (S, "a", lambda t: t(3, 4).reshape(-1, -1)),
    "reshape: a view": (S, "contiguous", lambda t: t(3, 4).T.reshape(12)),
    "reshape: blocks": (S, "a", lambda t: t(2, 32, dtype="q8_0").reshape(4, 16)),
    "view: outside": (S, "a", lambda t: ops.view(t(3, 4), (3, 4), offset=4)),
    "view: strides outside": (S, "a", lambda t: ops.view(t(3, 4), (3, 2), strides=(24,))),
    "permute: no order": (S, "a", lambda t: ops.permute(t(3, 4), (0, 0))),
    "cast: integers to halves": (D, "a.*f16", lambda t: ops.cast(t(3, dtype="i32"), "f16")),
    "cast: blocks": (S, "a", lambda t: ops.cast(t(3, 5), "q8_0")),
    "cast: quantized to half": (D, "a.*f16", lambda t: ops.cast(t(3, 32, dtype="q8_0"), "f16")),
    "cast: unknown": (D, "q9_9", lambda t: ops.cast(t(3), "q9_9")),
    "cont: transposed blocks": (S, "quantized", lambda t: ops.cont(t(32, 32, dtype="q8_0").T)),
    "a transposed quantized matrix": (S, "quantized", lambda t: ops.dup(t(32, 32, dtype="q8_0").T)),
    "a slice of it": (S, "quantized", lambda t: t(32, 32, dtype="q8_0").T[:32]),
    "permute: blocks": (S, "a", lambda t: ops.permute(t(32, 32, dtype="q8_0"), (1, 0))),
    "cpy: count": (S, "a.*b", lambda t: ops.cpy(t(3, 4), t(3, 5))),
    "cpy: rows of blocks": (S, "a.*b", lambda t: ops.cpy(t(2, 64), t(4, 32, dtype="q8_0"))),
    "repeat: no multiple": (S, "a", lambda t: ops.repeat(t(3, 4), (3, 6))),
    "concat: extents": (S, "a.*b", lambda t: ops.concat(t(3, 4), t(2, 5), 1)),
    "concat: types": (D, "a.*b", lambda t: ops.concat(t(3, 4), t(3, 4, dtype="f16"))),
    "concat: axis": (A, "axis", lambda t: ops.concat(t(3, 4), t(3, 4), 2)),
    "pad: negative": (A, "a", lambda t: ops.pad(t(3, 4), [1, -1])),
    "pad: count": (A, "a", lambda t: ops.pad(t(3, 4), [1])),
    "pad: too large": (S, "pad", lambda t: ops.pad(t(1, 1, 1, 1), [1 << 20] * 4)),
    "roll: shift": (A, "a", lambda t: ops.roll(t(3, 4), [3, 0])),
    "pad_reflect_1d: width": (A, "a", lambda t: ops.pad_reflect_1d(t(3, 4), 4, 0)),
    "diag: rows": (S, "a", lambda t: ops.diag(t(2, 4))),
    "tri: square": (S, "a", lambda t: ops.tri(t(2, 4), "lower")),
    "solve_tri: form": (A, "lower", lambda t: ops.solve_tri(t(4, 4), t(4, 2), lower=False)),
    "rope: positions": (S, "b.*a", lambda t: ops.rope(t(3, 2, 8), t(4, dtype="i32"), 8)),
    "rope: odd dims": (S, "a", lambda t: ops.rope(t(3, 2, 8), t(3, dtype="i32"), 7)),
    "rope: mode": (A, "mode", lambda t: ops.rope(t(3, 2, 8), t(3, dtype="i32"), 8, 8)),
    "rope_ext: factors": (S, "c.*a", lambda t: ops.rope_ext(t(3, 2, 8), t(3, dtype="i32"), t(2), n_dims=4)),
    "rope_multi: sections": (
        A, "a", lambda t: ops.rope_multi(t(3, 2, 8), t(12, dtype="i32"), None, n_dims=8, sections=(1, -1, 1, 0)),
    ),
    "flash: head size": (S, "a.*b", lambda t: ops.flash_attn_ext(t(2, 3, 8), t(2, 5, 16), t(2, 5, 8), None)),
    "flash: heads": (S, "b.*a", lambda t: ops.flash_attn_ext(t(3, 3, 8), t(2, 5, 8), t(2, 5, 8), None)),
    "flash: f16 queries": (D, "a", lambda t: ops.flash_attn_ext(t(2, 3, 8, dtype="f16"), t(2, 5, 8), t(2, 5, 8), None)),
    "flash: mask type": (D, "d", lambda t: ops.flash_attn_ext(t(2, 3, 8), t(2, 5, 8), t(2, 5, 8), t(3, 5))),
    "conv_2d: channels": (S, "a.*b", lambda t: ops.conv_2d(t(4, 3, 2, 2), t(1, 2, 5, 5))),
    "conv_2d: size": (S, "a.*b", lambda t: ops.conv_2d(t(4, 3, 6, 6), t(1, 3, 5, 5))),
    "conv_2d: stride": (A, "stride", lambda t: ops.conv_2d(t(4, 3, 2, 2), t(1, 3, 5, 5), stride=(0, 1))),
    "conv_2d: no pair": (A, "pad", lambda t: ops.conv_2d(t(4, 3, 2, 2), t(1, 3, 5, 5), pad=1)),
    "conv_2d_direct: patch": (S, "a", lambda t: ops.conv_2d_direct(t(1, 1 << 22, 2, 2), t(1, 1 << 22, 2, 2))),
    "conv_1d: batch": (S, "b", lambda t: ops.conv_1d(t(4, 3, 2), t(2, 3, 5))),
    "conv_transpose_2d_p0: batch": (S, "b", lambda t: ops.conv_transpose_2d_p0(t(3, 4, 2, 2), t(2, 3, 4, 4))),
    "conv_3d: channels": (S, "a.*b", lambda t: ops.conv_3d(t(12, 2, 2, 2), t(6, 4, 4, 4), 5)),
    "pool_1d: kernel": (S, "a", lambda t: ops.pool_1d(t(3, 4), "max", 5)),
    "pool_1d: word": (A, "op", lambda t: ops.pool_1d(t(3, 4), "min", 2)),
    "interpolate: antialias": (A, "bilinear", lambda t: ops.interpolate(t(3, 4), (6, 8), antialias=True)),
    "win_unpart: windows": (S, "a", lambda t: ops.win_unpart(t(3, 4, 4, 3), 6, 5, 4)),
    "get_rel_pos: rows": (S, "a", lambda t: ops.get_rel_pos(t(6, 4, dtype="f16"), 3, 3)),
    "ssm_conv: sizes": (S, "a.*b", lambda t: ops.ssm_conv(t(2, 5, 8), t(4, 4))),
    "rwkv_wkv7: head size": (S, "a", lambda t: ops.rwkv_wkv7(*(t(4, 2, 8) for _ in range(6)), t(2, 128))),
    "gated_linear_attn: sequences": (
        S, "e", lambda t: ops.gated_linear_attn(*(t(4, 2, 8) for _ in range(4)), t(3, 128), 1.0),
    ),
    "arange: backward": (A, "arange", lambda t: ops.arange(kit.Context, 5, 0)),
    "no tensor": (A, "int", lambda t: ops.add(t(3), 4)),
    "indexing: range": (S, "a", lambda t: t(3, 4)[3]),
    "indexing: empty": (S, "a", lambda t: t(3, 4)[2:2]),
    "indexing: backward": (S, "a", lambda t: t(3, 4)[::-1]),
    "indexing: blocks": (S, "a", lambda t: t(3, 64, dtype="q8_0")[:, 16:48]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(t, case):
    error, pattern, call = REFUSALS[case]
    with pytest.raises(error, match=rf"(?s){pattern}"):
        call(t)


@pytest.mark.parametrize("operator", ["__add__", "__sub__", "__mul__", "__truediv__", "__matmul__"])
def test_operators_leave_other_types_to_python(ctx, operator):
    x = ctx.tensor((3, 4))
    assert getattr(x, operator)("text") is NotImplemented
    with pytest.raises(TypeError):
        x + np.ones(4)
    with pytest.raises(TypeError):
        np.ones(4) - x


def test_an_operation_on_a_closed_context_raises(backend):
    with kit.Context(backend, name="gone") as ctx:
        x = ctx.tensor((3, 4))
        view = x[1:]
    for use in (lambda: x + x, lambda: x * 2, lambda: -x, lambda: x @ x.T, lambda: x[0], lambda: view + view):
        with pytest.raises(kit.ClosedError, match="gone"):
            use()


def test_tensors_of_two_backends_do_not_mix(backend, ctx):
    with kit.Backend(n_threads=1) as other, kit.Context(other) as theirs, pytest.raises(A, match="different backends"):
        ctx.tensor((3,)) + theirs.tensor((3,))
