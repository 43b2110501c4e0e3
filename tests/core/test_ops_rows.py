"""Operations on whole rows against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit import ops

SUM = 2e-6  # float32 sums of at most a few hundred terms, relative to the largest


def close(found, expected, bound=SUM):
    assert found.shape == np.shape(expected)
    assert np.abs(found - expected).max() <= bound * max(1.0, np.abs(expected).max())


def exact(tensor):
    return tensor.numpy().astype(np.float64)


SHAPES = [(11,), (4, 37), (3, 2, 8), (2, 3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_means(bench, shape):
    x = bench.normal(*shape)
    values = exact(x)
    close(bench.value(ops.sum(x)), values.sum().reshape(1))
    close(bench.value(ops.sum_rows(x)), values.sum(-1, keepdims=True))
    close(bench.value(ops.mean(x)), values.mean(-1, keepdims=True))
    close(bench.value(ops.cumsum(x)), values.cumsum(-1))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sum_of_halves(bench, dtype):
    x = bench.normal(4, 32, dtype=dtype)
    close(bench.value(ops.sum(x)).astype(np.float64), exact(x).sum().reshape(1), 1e-2)  # the result is a half, too


def test_argmax_and_count_equal(bench):
    x = bench.normal(6, 40)
    assert bench.value(ops.argmax(x)).tolist() == x.numpy().argmax(-1).tolist()
    a, b = bench.random.integers(0, 3, (2, 5, 7))
    assert bench.value(ops.count_equal(bench.tensor(a, "i32"), bench.tensor(b, "i32"))).tolist() == [(a == b).sum()]


@pytest.mark.parametrize("shape", [*SHAPES, (2, 300)])
def test_orders(bench, shape):
    x = bench.tensor(bench.random.permutation(np.prod(shape)).reshape(shape))  # no ties
    values = x.numpy()
    assert np.array_equal(bench.value(ops.argsort(x)), values.argsort(-1))
    assert np.array_equal(bench.value(ops.argsort(x, "desc")), (-values).argsort(-1))
    k = shape[-1] // 2
    assert np.array_equal(bench.value(ops.argsort_top_k(x, k)), (-values).argsort(-1)[..., :k])
    assert np.array_equal(np.sort(bench.value(ops.top_k(x, k))), np.sort((-values).argsort(-1)[..., :k]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_rows_with_nan_are_sorted_like_infinity(benches, n, share, seed):
    with benches() as bench:
        random = np.random.default_rng(seed)
        values = np.where(random.random((2, n)) < share, np.nan, random.standard_normal((2, n)))
        order = bench.value(ops.argsort(bench.tensor(values)))
        assert np.array_equal(np.sort(order), np.tile(np.arange(n), (2, 1)))
        in_order = np.take_along_axis(np.where(np.isnan(values), np.inf, values), order, -1)
        assert (in_order[:, 1:] >= in_order[:, :-1]).all()
        chosen = bench.value(ops.top_k(bench.tensor(values), max(1, n // 2)))
        assert all(len(set(row.tolist())) == len(row) and min(row) >= 0 and max(row) < n for row in chosen)


@pytest.mark.parametrize("shape", SHAPES)
def test_normalizations_of_rows(bench, shape):
    x = bench.normal(*shape)
    values, eps = exact(x), 1e-5
    centred = values - values.mean(-1, keepdims=True)
    close(bench.value(ops.norm(x, eps)), centred / np.sqrt(values.var(-1, keepdims=True) + eps))
    close(bench.value(ops.rms_norm(x, eps)), values / np.sqrt((values**2).mean(-1, keepdims=True) + eps))
    length = np.sqrt((values**2).sum(-1, keepdims=True))
    close(bench.value(ops.l2_norm(x, eps)), values / np.maximum(length, eps))


def test_normalizations_of_a_view_with_other_row_strides(bench):
    x = bench.normal(3, 4, 10)
    part = ops.permute(x, (1, 0, 2))[:, :, 2:]
    values = exact(x).transpose(1, 0, 2)[:, :, 2:]
    close(bench.value(ops.rms_norm(part, 0.0)), values / np.sqrt((values**2).mean(-1, keepdims=True)))
    centred = values - values.mean(-1, keepdims=True)
    close(bench.value(ops.norm(part, 0.0)), centred / np.sqrt(values.var(-1, keepdims=True)))


@pytest.mark.parametrize("n_groups", [1, 2, 3, 6])
def test_group_norm(bench, n_groups):
    x = bench.normal(2, 6, 3, 4)
    grouped = exact(x).reshape(2, n_groups, -1)
    expected = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-6)
    close(bench.value(ops.group_norm(x, n_groups, 1e-6)), expected.reshape(2, 6, 3, 4))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_soft_max(bench, shape):
    x = bench.normal(*shape)
    close(bench.value(ops.soft_max(x)), softmax(exact(x)))
    close(bench.value(ops.soft_max_ext(x, None, 0.5)), softmax(exact(x) * 0.5))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_soft_max_with_a_mask_for_all_heads(bench, dtype):
    x = bench.normal(4, 3, 6)
    mask = bench.tensor(np.triu(np.full((3, 6), -np.inf), 4), dtype)
    close(bench.value(ops.soft_max_ext(x, mask, 0.3)), softmax(exact(x) * 0.3 + exact(mask)))


def test_soft_max_with_alibi(bench):
    x, mask = bench.normal(4, 3, 6), bench.normal(3, 6)
    slopes = 2.0 ** (-8.0 * np.arange(1, 5) / 4)  # of 4 heads and max_bias 8, from the ALiBi paper
    expected = softmax(exact(x) + slopes[:, None, None] * exact(mask))
    close(bench.value(ops.soft_max_ext(x, mask, 1.0, 8.0)), expected)


def test_soft_max_with_sinks(bench):
    x, sinks = bench.normal(4, 3, 6), bench.normal(4)
    wide = np.concatenate([exact(x), np.broadcast_to(exact(sinks)[:, None, None], (4, 3, 1))], -1)
    close(bench.value(ops.soft_max_ext(x, None, 1.0, sinks=sinks)), softmax(wide)[..., :-1])


def test_cross_entropy(bench):
    logits, labels = bench.normal(5, 9), bench.tensor(np.eye(9)[[1, 2, 3, 4, 8]])
    expected = -np.mean(np.sum(exact(labels) * np.log(softmax(exact(logits))), -1))
    close(bench.value(ops.cross_entropy_loss(logits, labels)), expected.reshape(1))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_1", "q8_0", "q6_k", "i32"])
def test_get_rows_gives_floats_of_every_type(bench, dtype):
    table = bench.tensor(bench.random.integers(-9, 9, (7, 256)), dtype)
    found = bench.value(ops.get_rows(table, bench.tensor([3, 0, 3], "i32")))
    assert np.array_equal(found, table.numpy()[[3, 0, 3]].astype(found.dtype))


def test_get_rows_of_a_stack_of_matrices(bench):
    table, rows = bench.normal(2, 5, 4), np.array([[4, 0, 1], [2, 2, 3]])
    node = ops.get_rows(table, bench.tensor(rows, "i32"))
    assert np.array_equal(bench.value(node), np.stack([table.numpy()[i][rows[i]] for i in range(2)]))


@pytest.mark.parametrize("index", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("op", ["get_rows", "set_rows", "add_id", "mul_mat_id"])
def test_an_index_out_of_range_raises_and_all_goes_on(bench, op, index):
    ids = bench.tensor([[0, index]], "i32")
    table, experts = bench.normal(5, 4), bench.normal(5, 3, 4)
    make = {
        "get_rows": lambda: ops.get_rows(table, ids.reshape(2)),
        "set_rows": lambda: ops.set_rows(table, bench.normal(2, 4), ids.reshape(2)),
        "add_id": lambda: ops.add_id(bench.normal(1, 2, 4), table, ids),
        "mul_mat_id": lambda: ops.mul_mat_id(experts, bench.normal(1, 1, 4), ids),
    }[op]
    with pytest.raises(kit.GgmlAbort):
        bench.value(make())
    ids.set([[0, 4]])
    assert np.isfinite(bench.value(make())).all()


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("index", ["i32", "i64"])
def test_set_rows_writes_into_its_target(bench, dtype, index):
    into = bench.tensor(np.zeros((6, 32)), dtype)
    values = bench.normal(2, 32)
    node = ops.set_rows(into, values, bench.tensor([4, 1], index))
    bench.value(node)
    found = into.numpy().astype(np.float64)
    close(found[[4, 1]], exact(values), {"f32": 0.0, "f16": 1e-3, "q8_0": 1 / 127}[dtype])
    assert not found[[0, 2, 3, 5]].any()


def test_set_rows_takes_halves_into_halves(bench):
    into, values = bench.tensor(np.zeros((3, 8)), "f16"), bench.normal(1, 8, dtype="f16")
    bench.value(ops.set_rows(into, values, bench.tensor([2], "i64")))
    assert np.array_equal(into.numpy()[2], values.numpy()[0])
