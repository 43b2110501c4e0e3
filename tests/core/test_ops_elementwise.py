"""Operations on each element against numpy in float64. Formulas are those of ggml.h."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit import ops

erf = np.vectorize(math.erf)
sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
gelu = lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))  # noqa: E731
gelu_erf = lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))  # noqa: E731
gelu_quick = lambda x: x * sigmoid(1.702 * x)  # noqa: E731
silu = lambda x: x * sigmoid(x)  # noqa: E731

EXACT = 0.0
FLOAT = 3e-7  # a few roundings of float32, relative to the largest value
TABLE = 2e-3  # ggml looks these up by the argument rounded to float16
FORMULAS = {
    "sqr": (np.square, FLOAT),
    "sqrt": (lambda x: np.sqrt(x), FLOAT),
    "log": (lambda x: np.log(x), FLOAT),
    "expm1": (np.expm1, FLOAT),
    "softplus": (lambda x: np.log1p(np.exp(x)), FLOAT),
    "sin": (np.sin, FLOAT),
    "cos": (np.cos, FLOAT),
    "abs": (np.abs, EXACT),
    "sgn": (np.sign, EXACT),
    "neg": (np.negative, EXACT),
    "step": (lambda x: (x > 0).astype(float), EXACT),
    "tanh": (np.tanh, FLOAT),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(x)), FLOAT),
    "relu": (lambda x: np.maximum(x, 0), EXACT),
    "sigmoid": (sigmoid, FLOAT),
    "gelu": (gelu, TABLE),
    "gelu_erf": (gelu_erf, FLOAT),
    "gelu_quick": (gelu_quick, TABLE),
    "silu": (silu, FLOAT),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, FLOAT),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, FLOAT),
    "exp": (np.exp, FLOAT),
    "floor": (np.floor, EXACT),
    "ceil": (np.ceil, EXACT),
    "round": (lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), EXACT),
    "trunc": (np.trunc, EXACT),
}
NEEDS_POSITIVE = {"sqrt", "log"}


def close(found, expected, bound):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= bound * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("shape", [(7,), (3, 33), (2, 1, 5), (2, 3, 2, 9)])
def test_each_function_is_its_formula(bench, name, shape):
    formula, bound = FORMULAS[name]
    values = bench.random.standard_normal(shape) * 3
    x = bench.tensor(np.abs(values) + 0.01 if name in NEEDS_POSITIVE else values)
    close(bench.value(getattr(ops, name)(x)), formula(x.numpy().astype(np.float64)), bound)


@pytest.mark.parametrize("name", FORMULAS)
def test_each_function_takes_f16(bench, name):
    formula, bound = FORMULAS[name]
    x = bench.tensor(np.abs(bench.random.standard_normal((3, 10))) + 0.01, "f16")
    node = getattr(ops, name)(x)
    assert node.dtype == "f16"
    close(bench.value(node).astype(np.float64), formula(x.numpy().astype(np.float64)), max(bound, 2e-3))  # f16: 2**-10


@pytest.mark.parametrize("name", FORMULAS)
def test_each_function_takes_rows_of_a_view(bench, name):
    formula, bound = FORMULAS[name]
    x = bench.tensor(np.abs(bench.random.standard_normal((6, 10))) + 0.01)
    part = x[1::2, 2:8]
    close(bench.value(getattr(ops, name)(part)), formula(x.numpy().astype(np.float64)[1::2, 2:8]), bound)


def test_leaky_relu_and_xielu_are_their_formulas(bench):
    x = bench.normal(4, 9)
    values = x.numpy().astype(np.float64)
    close(bench.value(ops.leaky_relu(x, 0.1)), np.where(values > 0, values, 0.1 * values), FLOAT)
    alpha_n, alpha_p, beta, eps = 0.3, 0.7, 0.5, -1e-6
    n, p = beta + np.log1p(np.exp(alpha_n)), np.log1p(np.exp(alpha_p))
    expected = np.where(
        values > 0, p * values**2 + beta * values, (np.expm1(np.minimum(values, eps)) - values) * n + beta * values
    )
    close(bench.value(ops.xielu(x, alpha_n, alpha_p, beta, eps)), expected, FLOAT)


def test_clamp_cuts_and_leaves_its_source_alone(bench):
    x = bench.tensor([[-3.0, -0.5, 0.5, np.nan, np.inf]])
    before = x.numpy()
    assert bench.value(ops.clamp(x, -1, 1)).tolist() == [[-1, -0.5, 0.5, 1, 1]]
    assert np.array_equal(x.numpy(), before, equal_nan=True)


def test_scale_multiplies_and_shifts(bench):
    x = bench.normal(4, 9)
    close(bench.value(ops.scale(x, 2.5, -1.0)), x.numpy().astype(np.float64) * 2.5 - 1, FLOAT)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (lambda x: x + 1, lambda x: x + 1),
        (lambda x: 1 + x, lambda x: x + 1),
        (lambda x: x - 1.5, lambda x: x - 1.5),
        (lambda x: 1.5 - x, lambda x: 1.5 - x),
        (lambda x: x * np.float32(3), lambda x: x * 3),
        (lambda x: 3 * x, lambda x: x * 3),
        (lambda x: x / 4, lambda x: x / 4),
        (lambda x: -x, lambda x: -x),
        (lambda x: abs(x), np.abs),
    ],
)
def test_operators_take_numbers(bench, node, expected):
    x = bench.normal(3, 5)
    close(bench.value(node(x)), expected(x.numpy().astype(np.float64)), FLOAT)


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


@st.composite
def repeating_shapes(draw):
    small = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    large = [extent * draw(st.integers(1, 3)) for extent in small]
    return tuple(large), tuple(small)


@settings(max_examples=60, deadline=None)
@given(repeating_shapes(), st.sampled_from(sorted(BINARY)))
def test_the_second_repeats_over_the_first(benches, shapes, name):
    large, small = shapes
    with benches() as bench:
        a, b = bench.normal(*large), bench.tensor(bench.random.uniform(1, 2, small))
        tiled = np.tile(b.numpy().astype(np.float64), [m // n for m, n in zip(large, small, strict=True)])
        close(bench.value(getattr(ops, name)(a, b)), BINARY[name](a.numpy().astype(np.float64), tiled), FLOAT)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_where_numpy_broadcasts_one_over_the_other_so_do_we(benches, data):
    large = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    kept = data.draw(st.integers(1, len(large)))
    small = tuple(extent if data.draw(st.booleans()) else 1 for extent in large[-kept:])
    with benches() as bench:
        a, b = bench.normal(*large), bench.normal(*small)
        expected = a.numpy() + b.numpy()
        assert np.array_equal(bench.value(a + b), expected)
        assert np.array_equal(bench.value(b + a), expected)
        assert np.array_equal(bench.value(b * a), a.numpy() * b.numpy())


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("f32", "f32", "f32"),
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "bf16"),
        ("f16", "f32", "f16"),
        ("bf16", "f32", "bf16"),
    ],
)
@pytest.mark.parametrize("name", BINARY)
def test_types_that_go_together(bench, name, left, right, result):
    a = bench.normal(3, 8, dtype=left)
    b = bench.tensor(bench.random.uniform(1, 2, (3, 8)), right)
    node = getattr(ops, name)(a, b)
    assert node.dtype == result
    expected = BINARY[name](a.numpy().astype(np.float64), b.numpy().astype(np.float64))
    close(bench.value(node).astype(np.float64), expected, {"f32": FLOAT, "f16": 1e-3, "bf16": 8e-3}[result])


def test_a_quantized_tensor_plus_floats_stays_quantized(bench):
    a, b = bench.normal(3, 64, dtype="q8_0"), bench.normal(3, 64)
    node = a + b
    assert node.dtype == "q8_0"
    close(bench.value(node), a.numpy().astype(np.float64) + b.numpy(), 1 / 127)  # one step of q8_0
    close(bench.value(ops.add_cast(a, b, "f32")), a.numpy().astype(np.float64) + b.numpy(), FLOAT)


def test_add_cast_gives_floats_of_halves(bench):
    a, b = bench.normal(3, 8, dtype="f16"), bench.normal(1, 8)
    close(bench.value(ops.add_cast(a, b, "f32")), a.numpy().astype(np.float64) + b.numpy(), FLOAT)


def test_add_id_adds_the_row_each_id_names(bench):
    a, b = bench.normal(4, 2, 6), bench.normal(5, 6)
    ids = np.array([[0, 4], [1, 1], [3, 2], [4, 0]])
    node = ops.add_id(a, b, bench.tensor(ids, "i32"))
    assert np.array_equal(bench.value(node), a.numpy() + b.numpy()[ids])


def test_acc_and_set_work_on_a_part_of_a_copy(bench):
    a, b = bench.normal(4, 6), bench.normal(2, 3)
    added, put = a.numpy(), a.numpy()
    added[1:3, 2:5] += b.numpy()
    put[1:3, 2:5] = b.numpy()
    offset = (6 + 2) * 4
    assert np.array_equal(bench.value(ops.acc(a, b, offset=offset)), added)
    assert np.array_equal(bench.value(ops.set(a, b, offset=offset)), put)


GATES = {
    "reglu": (lambda x: np.maximum(x, 0), EXACT + FLOAT),
    "geglu": (gelu, TABLE),
    "swiglu": (silu, FLOAT),
    "geglu_erf": (gelu_erf, FLOAT),
    "geglu_quick": (gelu_quick, TABLE),
}


@pytest.mark.parametrize("name", GATES)
def test_gated_units_activate_the_half_they_say(bench, name):
    gate, bound = GATES[name]
    x = bench.normal(3, 20)
    first, second = np.split(x.numpy().astype(np.float64), 2, -1)
    close(bench.value(getattr(ops, name)(x)), gate(first) * second, bound)
    close(bench.value(getattr(ops, f"{name}_swapped")(x)), first * gate(second), bound)
    node = getattr(ops, f"{name}_split")(x[:, :10], x[:, 10:])
    close(bench.value(node), gate(first) * second, bound)


def test_swiglu_oai_clips_both_halves(bench):
    g, u = bench.normal(3, 10), bench.normal(3, 10)
    x = np.minimum(g.numpy().astype(np.float64), 0.8)
    y = np.clip(u.numpy().astype(np.float64), -0.8, 0.8)
    close(bench.value(ops.swiglu_oai(g, u, 1.702, 0.8)), x * sigmoid(1.702 * x) * (y + 1), FLOAT)


def test_a_node_lands_in_the_younger_context(backend):
    with kit.Context(backend) as old, kit.Context(backend) as young:
        a, b = old.tensor((2,)).set([1, 2]), young.tensor((2,)).set([3, 4])
        for node in (a + b, b + a):
            assert node.core is b.core
            assert young.graph(node).compute().numpy().tolist() == [4, 6]
