"""Products, triangles and diagonals against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import ops

FLOAT = 2e-6  # float32 sums of at most a few hundred products
#: ggml rounds the second factor to the type it multiplies the first with: f16 2**-11, q8_0 and q8_K 1/254
ROUNDING = {
    "f32": FLOAT,
    "f16": 2e-3,
    "bf16": 8e-3,
    "q8_0": 1e-2,
    "q4_0": 1e-2,
    "q4_1": 1e-2,
    "q6_k": 1e-2,
    "iq4_nl": 1e-2,
}


def close(found, expected, bound=FLOAT):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= bound * max(1.0, np.abs(expected).max())


def exact(tensor):
    return tensor.numpy().astype(np.float64)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_mul_mat_is_b_times_a_transposed(bench, dtype):
    a, b = bench.normal(5, 256, dtype=dtype), bench.normal(3, 256)
    close(bench.value(ops.mul_mat(a, b)), exact(b) @ exact(a).T, ROUNDING[dtype])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_matmul_is_numpys(benches, data):
    size = st.integers(1, 6)
    m, k, n = data.draw(size), data.draw(size), data.draw(size)
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    shared = [1 if data.draw(st.booleans()) else extent for extent in batch]
    with benches() as bench:
        x, y, w = bench.normal(*batch, m, k), bench.normal(*shared, k, n), bench.normal(n, k)
        close(bench.value(x @ y), exact(x) @ exact(y))
        close(bench.value(x @ w.T), exact(x) @ exact(w).T)


def test_matmul_of_transposed_views_and_vectors(bench):
    x, y, v = bench.normal(4, 3), bench.normal(4, 5), bench.normal(4)
    close(bench.value(x.T @ y), exact(x).T @ exact(y))
    close(bench.value(v @ y), exact(v) @ exact(y))
    close(bench.value(x[:, 1:].T @ y), exact(x)[:, 1:].T @ exact(y))


def test_grouped_heads_repeat(bench):
    keys, queries = bench.normal(2, 7, 8), bench.normal(6, 5, 8)
    expected = exact(queries) @ np.repeat(exact(keys), 3, 0).transpose(0, 2, 1)
    close(bench.value(ops.mul_mat(keys, queries)), expected)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("wide", [True, False])
def test_mul_mat_id_takes_the_matrix_each_id_names(bench, dtype, wide):
    experts = bench.normal(4, 6, 32, dtype=dtype)
    b = bench.normal(5, 3 if wide else 1, 32)
    ids = bench.random.integers(0, 4, (5, 3))
    expected = np.einsum("tenk,tek->ten", exact(experts)[ids], np.broadcast_to(exact(b), (5, 3, 32)))
    close(bench.value(ops.mul_mat_id(experts, b, bench.tensor(ids, "i32"))), expected, ROUNDING[dtype])


def test_ids_of_a_sort_are_used_as_they_are(bench):
    scores, experts, b = bench.normal(5, 4), bench.normal(4, 6, 8), bench.normal(5, 1, 8)
    order = ops.argsort_top_k(scores, 2)
    chosen = (-exact(scores)).argsort(-1)[:, :2]
    node = ops.mul_mat_id(experts, b, order)
    close(bench.value(node), np.einsum("tenk,tok->ten", exact(experts)[chosen], exact(b)))
    assert not any(n.op == "GET_ROWS" for n in bench.ctx.graph(node))


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_out_prod_sums_outer_products(bench, dtype):
    a, b = bench.normal(5, 32, dtype=dtype), bench.normal(5, 7)
    close(bench.value(ops.out_prod(a, b)), exact(b).T @ exact(a), ROUNDING[dtype])


def test_out_prod_repeats_over_leading_axes(bench):
    a, b = bench.normal(1, 5, 3), bench.normal(4, 5, 7)
    close(bench.value(ops.out_prod(a, b)), exact(b).transpose(0, 2, 1) @ exact(a))


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 1, 4)])
def test_diag(bench, shape):
    a = bench.normal(*shape)
    rows = exact(a).reshape(-1, shape[-1])
    expected = np.stack([np.diag(row) for row in rows])
    assert np.array_equal(bench.value(ops.diag(a)).reshape(expected.shape), expected)


@pytest.mark.parametrize("n_past", [0, 2])
def test_diagonal_masks(bench, n_past):
    a = bench.normal(2, 3, 6)
    above = np.arange(6) > n_past + np.arange(3)[:, None]
    assert np.array_equal(bench.value(ops.diag_mask_inf(a, n_past)), np.where(above, -np.inf, a.numpy()))
    assert np.array_equal(bench.value(ops.diag_mask_zero(a, n_past)), np.where(above, 0, a.numpy()))


def test_triangles(bench):
    a = bench.normal(2, 5, 5)
    kept = {"lower_diag": np.tril(a.numpy()), "lower": np.tril(a.numpy(), -1)}
    kept |= {"upper_diag": np.triu(a.numpy()), "upper": np.triu(a.numpy(), 1)}
    for kind, expected in kept.items():
        assert np.array_equal(bench.value(ops.tri(a, kind)), expected)


def test_solve_tri(bench):
    a = bench.tensor(np.tril(bench.random.standard_normal((2, 6, 6))) + 4 * np.eye(6))
    b = bench.normal(2, 6, 3)
    close(bench.value(ops.solve_tri(a, b)), np.linalg.solve(exact(a), exact(b)), 1e-5)  # errors add up over 6 rows
