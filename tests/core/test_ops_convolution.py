"""Convolutions, pooling, resizing and windows against the sums that define them, in numpy float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kit import ops

HALF = 3e-3  # im2col and f16 kernels round to float16
FLOAT = 2e-6
PLANS = [
    {},
    {"stride": (2, 1), "pad": (1, 2)},
    {"stride": (1, 3), "pad": (2, 0), "dilation": (2, 1)},
]


def close(found, expected, bound=FLOAT):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= bound * max(1.0, np.abs(expected).max())


def exact(tensor):
    return tensor.numpy().astype(np.float64)


def convolve(kernel, data, stride, pad, dilation, groups=1):
    """(out, in / groups, ...) over (batch, in, ...) by the definition, any number of axes."""
    n = len(stride)
    data = np.pad(data, [(0, 0), (0, 0), *((p, p) for p in pad)])
    size = [
        (m - d * (k - 1) - 1) // s + 1
        for m, k, s, d in zip(data.shape[2:], kernel.shape[2:], stride, dilation, strict=True)
    ]
    out = np.zeros((data.shape[0], kernel.shape[0], *size))
    inner, outer = kernel.shape[1], kernel.shape[0] // groups
    for at in itertools.product(*(range(m) for m in size)):
        cut = tuple(
            slice(i * s, i * s + d * (k - 1) + 1, d)
            for i, s, d, k in zip(at, stride, dilation, kernel.shape[2:], strict=True)
        )
        for g in range(groups):
            patch = data[(slice(None), slice(g * inner, (g + 1) * inner), *cut)]
            part = kernel[g * outer : (g + 1) * outer]
            axes = list(range(1, n + 2))
            out[(slice(None), slice(g * outer, (g + 1) * outer), *at)] = np.tensordot(patch, part, (axes, axes))
    return out


def planned(plan):
    return plan.get("stride", (1, 1)), plan.get("pad", (0, 0)), plan.get("dilation", (1, 1))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_conv_2d(bench, plan, dtype):
    kernel, data = bench.normal(4, 3, 2, 3, dtype=dtype), bench.normal(2, 3, 7, 8)
    expected = convolve(exact(kernel), exact(data), *planned(plan))
    close(bench.value(ops.conv_2d(kernel, data, **plan)), expected, HALF)
    close(bench.value(ops.conv_2d_direct(kernel, data, **plan)), expected, FLOAT if dtype == "f32" else HALF)


@pytest.mark.parametrize("plan", PLANS)
def test_depthwise_conv_2d(bench, plan):
    kernel, data = bench.normal(3, 1, 2, 3, dtype="f16"), bench.normal(2, 3, 7, 8)
    expected = convolve(exact(kernel), exact(data), *planned(plan), groups=3)
    close(bench.value(ops.conv_2d_dw(kernel, data, **plan)), expected, HALF)
    close(bench.value(ops.conv_2d_dw_direct(kernel, data, **plan)), expected, FLOAT)


def test_conv_2d_with_a_bf16_kernel_is_depthwise_only(bench):
    kernel, data = bench.normal(3, 1, 3, 3, dtype="bf16"), bench.normal(1, 3, 6, 6)
    expected = convolve(exact(kernel), exact(data), (1, 1), (0, 0), (1, 1), groups=3)
    close(bench.value(ops.conv_2d_dw(kernel, data)), expected, 8e-3)  # data rounded to bf16


def test_conv_2d_shorthands(bench):
    kernel, data = bench.normal(2, 3, 3, 3), bench.normal(1, 3, 9, 6)
    close(
        bench.value(ops.conv_2d_sk_p0(kernel, data)), convolve(exact(kernel), exact(data), (3, 3), (0, 0), (1, 1)), HALF
    )
    close(
        bench.value(ops.conv_2d_s1_ph(kernel, data)), convolve(exact(kernel), exact(data), (1, 1), (1, 1), (1, 1)), HALF
    )


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("stride", "pad", "dilation"), [(1, 0, 1), (2, 2, 1), (1, 1, 2)])
def test_conv_1d(bench, dtype, stride, pad, dilation):
    kernel, data = bench.normal(5, 3, 4, dtype=dtype), bench.normal(1, 3, 11)
    expected = convolve(exact(kernel), exact(data), (stride,), (pad,), (dilation,))
    close(bench.value(ops.conv_1d(kernel, data, stride=stride, pad=pad, dilation=dilation)), expected, HALF)
    deep = bench.normal(3, 1, 4, dtype=dtype)
    expected = convolve(exact(deep), exact(data), (stride,), (pad,), (dilation,), groups=3)
    close(bench.value(ops.conv_1d_dw(deep, data, stride=stride, pad=pad, dilation=dilation)), expected, HALF)


def test_conv_1d_with_half_padding(bench):
    kernel, deep, data = bench.normal(5, 3, 3), bench.normal(3, 1, 3), bench.normal(1, 3, 8)
    close(bench.value(ops.conv_1d_ph(kernel, data)), convolve(exact(kernel), exact(data), (1,), (1,), (1,)), HALF)
    expected = convolve(exact(deep), exact(data), (1,), (1,), (1,), groups=3)
    close(bench.value(ops.conv_1d_dw_ph(deep, data)), expected, HALF)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_conv_3d(bench, dtype):
    plan = {"stride": (1, 2, 1), "pad": (1, 0, 1), "dilation": (1, 1, 2)}
    k, d = bench.normal(4 * 3, 2, 3, 2, dtype=dtype), bench.normal(2 * 3, 4, 5, 6)
    expected = convolve(exact(k).reshape(4, 3, 2, 3, 2), exact(d).reshape(2, 3, 4, 5, 6), *plan.values())
    expected = expected.reshape(-1, *expected.shape[2:])
    close(bench.value(ops.conv_3d(k, d, 3, **plan)), expected, HALF)
    close(bench.value(ops.conv_3d_direct(k, d, 3, **plan)), expected, FLOAT if dtype == "f32" else HALF)


def test_im2col_holds_the_patches(bench):
    kernel, data = bench.normal(4, 3, 2, 3), bench.normal(2, 3, 5, 6)
    patches = np.lib.stride_tricks.sliding_window_view(data.numpy(), (2, 3), (2, 3))  # batch, in, oh, ow, kh, kw
    expected = patches.transpose(0, 2, 3, 1, 4, 5).reshape(2, 4, 4, -1)
    assert np.array_equal(bench.value(ops.im2col(kernel, data, dtype="f32")), expected)
    assert np.array_equal(bench.value(ops.im2col(kernel, data)), expected.astype("f2"))
    row, flat = bench.normal(4, 3, 2), bench.normal(2, 3, 6)
    windows = np.lib.stride_tricks.sliding_window_view(flat.numpy(), 2, 2).transpose(0, 2, 1, 3).reshape(2, 5, -1)
    assert np.array_equal(bench.value(ops.im2col(row, flat, is_2d=False, dtype="f32")), windows)


def test_im2col_3d_holds_the_patches(bench):
    data = bench.normal(3, 4, 5, 6)
    patches = np.lib.stride_tricks.sliding_window_view(data.numpy(), (2, 2, 3), (1, 2, 3))
    expected = patches.transpose(1, 2, 3, 0, 4, 5, 6).reshape(3, 4, 4, -1)
    node = ops.im2col_3d(bench.normal(6, 2, 2, 3), data, 3, dtype="f32")
    assert np.array_equal(bench.value(node), expected)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_convolutions(bench, dtype, stride):
    kernel, data = bench.normal(3, 4, 2, 3, dtype=dtype), bench.normal(1, 3, 4, 5)
    expected = np.zeros((1, 4, 3 * stride + 2, 4 * stride + 3))
    for y, x in itertools.product(range(4), range(5)):
        part = np.einsum("i,iokl->okl", exact(data)[0, :, y, x], exact(kernel))
        expected[0, :, y * stride : y * stride + 2, x * stride : x * stride + 3] += part
    close(bench.value(ops.conv_transpose_2d_p0(kernel, data, stride=stride)), expected, HALF)
    kernel, data = bench.normal(3, 4, 3, dtype=dtype), bench.normal(3, 5)
    expected = np.zeros((4, 4 * stride + 3))
    for x in range(5):
        expected[:, x * stride : x * stride + 3] += np.einsum("i,iok->ok", exact(data)[:, x], exact(kernel))
    close(bench.value(ops.conv_transpose_1d(kernel, data, stride=stride)), expected, HALF)


def test_col2im_1d_adds_overlapping_columns(bench):
    columns = bench.normal(5, 2 * 3)
    expected = np.zeros((2, 4 * 2 + 3))
    for t in range(5):
        expected[:, t * 2 : t * 2 + 3] += exact(columns)[t].reshape(2, 3)
    close(bench.value(ops.col2im_1d(columns, stride=2, channels=2)), expected)
    close(bench.value(ops.col2im_1d(columns, stride=2, channels=2, pad=1)), expected[:, 1:-1])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 1, 1), (3, 2, 0)])
def test_pooling(bench, dtype, kernel, stride, pad):
    line, plane = bench.normal(3, 9, dtype=dtype), bench.normal(2, 3, 7, 9, dtype=dtype)
    windows = np.lib.stride_tricks.sliding_window_view
    wide = np.pad(exact(line), [(0, 0), (pad, pad)], constant_values=np.nan)
    cut = windows(wide, kernel, -1)[:, ::stride]
    for op, function in (("max", np.nanmax), ("avg", np.nanmean)):
        close(bench.value(ops.pool_1d(line, op, kernel, stride=stride, pad=pad)), function(cut, -1))
    pair = {"stride": (stride, stride), "pad": (pad, pad)}
    margin = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
    largest = windows(np.pad(exact(plane), margin, constant_values=-np.inf), (kernel, kernel), (2, 3))
    close(
        bench.value(ops.pool_2d(plane, "max", (kernel, kernel), **pair)),
        largest[:, :, ::stride, ::stride].max((-2, -1)),
    )
    zeros = windows(np.pad(exact(plane), margin), (kernel, kernel), (2, 3))
    close(
        bench.value(ops.pool_2d(plane, "avg", (kernel, kernel), **pair)), zeros[:, :, ::stride, ::stride].mean((-2, -1))
    )


def test_nearest_repeats_pixels(bench):
    a = bench.normal(2, 3, 4)
    expected = a.numpy().repeat(3, -1).repeat(3, -2)
    assert np.array_equal(bench.value(ops.upscale(a, 3)), expected)
    assert np.array_equal(bench.value(ops.interpolate(a, (4, 6, 4))), a.numpy().repeat(2, 0).repeat(2, 1))


def test_bilinear_with_corners_is_a_straight_line(bench):
    a = bench.tensor([[0.0, 3.0], [6.0, 9.0]])
    node = ops.interpolate(a, (3, 4), "bilinear", align_corners=True)
    close(bench.value(node), np.add.outer([0.0, 3.0, 6.0], [0.0, 1.0, 2.0, 3.0]))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_a_constant_gives_the_constant(bench, mode):
    node = ops.interpolate(bench.tensor(np.full((2, 3, 4), 2.5)), (2, 5, 9), mode)
    close(bench.value(node), np.full((2, 5, 9), 2.5))


def test_antialias_keeps_the_mean(bench):
    a = bench.normal(8, 8)
    found = bench.value(ops.interpolate(a, (4, 4), "bilinear", antialias=True))
    assert abs(found.mean() - a.numpy().mean()) < 0.1  # weights of a border triangle differ a little


def test_windows_there_and_back(bench):
    a = bench.normal(7, 9, 4)
    wide = np.pad(a.numpy(), [(0, 1), (0, 3), (0, 0)])
    expected = wide.reshape(2, 4, 3, 4, 4).transpose(0, 2, 1, 3, 4).reshape(6, 4, 4, 4)
    parts = ops.win_part(a, 4)
    assert np.array_equal(bench.value(parts), expected)
    assert np.array_equal(bench.value(ops.win_unpart(parts, 9, 7, 4)), a.numpy())


def test_relative_positions(bench):
    table = bench.normal(5, 4, dtype="f16")
    i, j = np.meshgrid(range(3), range(3), indexing="ij")
    assert np.array_equal(bench.value(ops.get_rel_pos(table, 3, 3)), table.numpy()[2 - j + i])
    scores, pw, ph = bench.normal(2, 6, 9), bench.normal(2, 2, 3, 3), bench.normal(2, 2, 3, 3)
    added = exact(pw)[..., None, :] + exact(ph)[..., :, None]  # heads, y, x, key row, key column
    close(bench.value(ops.add_rel_pos(scores, pw, ph)), exact(scores) + added.reshape(2, 6, 9))
