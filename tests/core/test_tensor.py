"""Tensors: shape in numpy order, values in and out for every type, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.core.dtypes import all_dtypes
from kit.core.native import lib

PLAIN = ["f32", "f16", "f64", "i8", "i16", "i32", "i64"]
NEEDS_IMATRIX = {name for name, kind in all_dtypes().items() if lib.ggml_quantize_requires_imatrix(kind.id)}
#: types ggml can quantize to and read back. The error grows with the width of a step; this is twice what
#: ggml's own test-quantize-fns allows as root mean square, in units of the values' spread
QUANTIZED = {
    "q8_0": 0.01, "q6_k": 0.03, "q5_0": 0.06, "q5_1": 0.05, "q5_k": 0.05, "q4_0": 0.12, "q4_1": 0.1, "q4_k": 0.1,
    "iq4_nl": 0.1, "iq4_xs": 0.1, "mxfp4": 0.2, "q3_k": 0.2, "iq3_s": 0.25, "q2_k": 0.4,
}  # fmt: skip


def test_shape_is_numpy_order_and_ne_is_ggmls(ctx):
    w = ctx.tensor((4, 8), "f16", name="w")
    assert (w.shape, w.ne, w.nb, w.ndim, w.size, w.nbytes) == ((4, 8), [8, 4], [2, 16], 2, 32, 64)
    assert (w.dtype, w.op, w.name, w.contiguous, len(w)) == ("f16", "NONE", "w", True, 4)


@pytest.mark.parametrize("shape", [(1,), (5, 1), (1, 1, 1), (2, 1, 1, 1)])
def test_axes_of_one_are_kept(ctx, shape):
    x = ctx.tensor(shape)
    assert x.shape == shape
    assert x.set(np.ones(shape)).numpy().shape == shape
    assert (x + x).shape == shape


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLAIN), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_plain_types_give_back_what_was_set(benches, dtype, shape, seed):
    with benches() as bench:
        random = np.random.default_rng(seed)
        x = bench.ctx.tensor(shape, dtype)
        kind = all_dtypes()[dtype].numpy
        if kind.kind == "i":
            values = random.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
        else:
            values = random.standard_normal(shape).astype(kind)
        found = x.set(values).numpy()
        assert found.dtype == kind
        assert np.array_equal(found, values)


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
def test_floats_keep_what_is_no_number(bench, dtype):
    values = [math.nan, math.inf, -math.inf, -0.0]
    found = bench.tensor(values, dtype).numpy()
    assert np.array_equal(found, np.array(values, found.dtype), equal_nan=True)
    assert math.copysign(1, found[3]) == -1


def test_bf16_reads_as_float32_rounded_to_8_bits(bench):
    values = bench.random.standard_normal(1000).astype("f4")
    found = bench.tensor(values, "bf16").numpy()
    assert found.dtype == np.float32
    assert np.abs(found / values - 1).max() <= 2.0**-8
    assert not (found.view("u4") & 0xFFFF).any()


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_quantized_types_read_as_float32_within_their_error(bench, dtype):
    values = bench.random.standard_normal((4, 512)).astype("f4")
    tensor = bench.tensor(values, dtype)
    found = tensor.numpy()
    assert found.dtype == np.float32
    assert np.sqrt(np.mean((found - values) ** 2)) <= QUANTIZED[dtype] * values.std()
    kind = all_dtypes()[next(name for name in all_dtypes() if name.lower() == dtype)]
    assert tensor.nbytes == values.size // kind.block * kind.block_nbytes


@pytest.mark.parametrize("dtype", sorted(NEEDS_IMATRIX))
def test_types_that_need_an_importance_matrix_say_so(ctx, dtype):
    with pytest.raises(kit.DTypeError, match="importance"):
        ctx.tensor((1, 256), dtype, "w").set(np.zeros((1, 256)))


@pytest.mark.parametrize(
    ("dtype", "values", "error"),
    [
        ("f32", np.zeros((3, 2)), kit.ShapeError),
        ("f32", np.zeros(6), kit.ShapeError),
        ("f32", [["a", "b", "c"]] * 2, kit.DTypeError),
        ("f32", np.zeros((2, 3), complex), kit.DTypeError),
        ("f32", np.zeros((2, 3), object), kit.DTypeError),
        ("i32", np.full((2, 3), 0.5), kit.DTypeError),
    ],
)
def test_values_that_do_not_fit_are_refused(ctx, dtype, values, error):
    with pytest.raises(error, match="table"):
        ctx.tensor((2, 3), dtype, "table").set(values)


def test_a_number_fills_a_tensor(ctx):
    assert ctx.tensor((2, 3)).set(7).numpy().tolist() == [[7, 7, 7], [7, 7, 7]]


@pytest.mark.parametrize("values", [np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(12).reshape(2, 6)[:, ::2]])
def test_values_in_any_memory_order_go_in(ctx, values):
    assert np.array_equal(ctx.tensor((2, 3), "i32").set(values).numpy(), values)


@pytest.mark.parametrize("values", [np.arange(6, dtype=">f4"), np.arange(6, dtype=">i8"), np.array([True, False] * 3)])
def test_values_of_another_byte_order_are_converted(ctx, values):
    assert np.array_equal(ctx.tensor((6,)).set(values).numpy(), values.astype("f4"))


def test_numpy_is_a_copy(ctx):
    x = ctx.tensor((3,)).set([1, 2, 3])
    x.numpy()[0] = 9
    assert x.numpy().tolist() == [1, 2, 3]
    assert np.asarray(x).tolist() == [1, 2, 3]


def test_item_takes_one_element(ctx):
    assert ctx.tensor((1, 1)).set(2.5).item() == 2.5
    with pytest.raises(kit.ShapeError, match="x"):
        ctx.tensor((2,), name="x").set(0).item()


def test_nothing_is_read_before_it_is_there(ctx):
    x = ctx.tensor((2,), name="x")
    with pytest.raises(kit.NotComputedError, match="x"):
        x.numpy()
    node = (x + x).named("twice")
    with pytest.raises(kit.NotComputedError, match="twice"):
        node.numpy()
    with pytest.raises(kit.NotComputedError, match="twice"):
        node.set([1, 2])


def test_tensors_have_no_truth_and_no_iteration(ctx):
    x = ctx.tensor((2,), name="x")
    for use in (lambda: bool(x), lambda: list(x)):
        with pytest.raises(TypeError, match="x"):
            use()


def test_names_are_ggmls(ctx):
    x = ctx.tensor((2,)).named("a name")
    assert x.name == "a name"
    assert "a name" in repr(x)
    for name in ["n" * 64, "ü" * 32, "zero\0byte", 3, "\ud800"]:
        with pytest.raises(kit.ContextError):
            x.name = name
    assert x.named("n" * 63).name == "n" * 63


def test_the_buffer_type_shows_once_there_is_memory(ctx):
    x = ctx.tensor((2,))
    assert x.buffer_type is None
    assert x.set([1, 2]).buffer_type == "CPU"
    assert x[1:].buffer_type == "CPU"


def test_a_view_made_before_its_source_has_memory_finds_it(ctx):
    x = ctx.tensor((4, 3))
    view = x[1:3].T
    x.set(np.arange(12).reshape(4, 3))
    assert np.array_equal(view.numpy(), np.arange(12).reshape(4, 3)[1:3].T)


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((), "f32", kit.ShapeError),
        ((1, 1, 1, 1, 1), "f32", kit.ShapeError),
        ((0,), "f32", kit.ShapeError),
        ((-1, 2), "f32", kit.ShapeError),
        ((2.5,), "f32", kit.ShapeError),
        ("ab", "f32", kit.ShapeError),
        (None, "f32", kit.ShapeError),
        ((1 << 40, 1 << 40), "f32", kit.ShapeError),
        ((math.inf,), "f32", kit.ShapeError),
        ((3, 31), "q8_0", kit.ShapeError),
        ((3,), "float31", kit.DTypeError),
        ((3,), np.complex64, kit.DTypeError),
        ((3,), "q4_2", kit.DTypeError),
    ],
)
def test_impossible_tensors_are_refused(ctx, shape, dtype, error):
    with pytest.raises(error):
        ctx.tensor(shape, dtype)
    assert ctx.tensor((2,)).set(1).numpy().tolist() == [1, 1]


def test_numpy_types_name_types_too(ctx):
    assert ctx.tensor((2,), np.float16).dtype == "f16"
    assert ctx.tensor((2,), "int64").dtype == "i64"
    assert ctx.tensor(5).shape == (5,)


def test_memory_this_machine_does_not_have_is_refused(ctx):
    with pytest.raises(kit.OutOfMemory, match="huge") as caught:
        ctx.tensor((1 << 30, 1 << 14), name="huge").set(0)
    assert caught.value.nbytes >= 1 << 46
