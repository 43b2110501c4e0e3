"""Indexing follows numpy's laws, and shares memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit import ops


@st.composite
def shapes_and_keys(draw, max_axes=3):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=max_axes)))
    named = draw(st.integers(0, len(shape)))
    key = []
    for extent in shape[:named]:
        if draw(st.booleans()):
            key.append(draw(st.integers(-extent, extent - 1)))
        else:
            start = draw(st.integers(0, extent - 1))
            stop = draw(st.integers(start + 1, extent))
            key.append(slice(draw(st.sampled_from([start, start - extent])), stop, draw(st.integers(1, 3))))
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), Ellipsis)
    if Ellipsis in key:  # what follows it counts from the last axis
        at = key.index(Ellipsis)
        tail = shape[len(shape) - (len(key) - at - 1) :]
        for i, extent in enumerate(tail):
            key[at + 1 + i] = draw(st.integers(-extent, extent - 1)) if draw(st.booleans()) else slice(0, extent)
    return shape, tuple(key)


@settings(max_examples=150, deadline=None)
@given(shapes_and_keys())
def test_indexing_is_numpys(benches, case):
    shape, key = case
    with benches() as bench:
        a = bench.normal(*shape)
        expected = np.asarray(a.numpy()[key])
        view = a[key]
        assert view.shape == (expected.shape or (1,))
        assert np.array_equal(view.numpy().reshape(expected.shape), expected)
        assert np.array_equal(bench.value(ops.cont(view)).reshape(expected.shape), expected)


@settings(max_examples=60, deadline=None)
@given(shapes_and_keys(), st.data())
def test_indexing_a_view_is_indexing_twice(benches, case, data):
    shape, key = case
    with benches() as bench:
        a = bench.normal(*shape)
        first = np.asarray(a.numpy()[key])
        if first.ndim == 0:
            return
        again = data.draw(st.integers(0, first.shape[0] - 1))
        assert np.array_equal(a[key][again].numpy().reshape(first[again].shape), first[again])


@settings(max_examples=60, deadline=None)
@given(shapes_and_keys())
def test_setting_a_view_sets_its_part_of_the_source(benches, case):
    shape, key = case
    with benches() as bench:
        a = bench.normal(*shape)
        expected = a.numpy()
        values = bench.random.standard_normal(np.shape(expected[key])).astype("f4")
        expected[key] = values
        view = a[key]
        view.set(values.reshape(view.shape))
        assert np.array_equal(a.numpy(), expected)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8", "i16", "i32", "i64", "f64"])
def test_every_plain_type_can_be_cut_anywhere(bench, dtype):
    a = bench.tensor(np.arange(30).reshape(5, 6), dtype)
    assert np.array_equal(a[1::2, 2:5].numpy(), a.numpy()[1::2, 2:5])


def test_quantized_rows_are_cut_at_whole_blocks(bench):
    a = bench.normal(5, 96, dtype="q8_0")
    assert np.array_equal(a[1::2, 32:].numpy(), a.numpy()[1::2, 32:])
    a[2].set(np.zeros(96))
    assert not a.numpy()[2].any()
    for key in [(slice(None), slice(1, 33)), (0, 0), (slice(None), slice(None, None, 2))]:
        with pytest.raises(kit.ShapeError, match="multiples of 32"):
            a[key]


@pytest.mark.parametrize(
    "key",
    ["x", 1.0, None, True, [0, 1], np.array([0]), (0, 0, 0), (..., ...), slice(2, 2), slice(None, None, -1), 5, -6],
)
def test_what_ggml_cannot_view_is_refused(bench, key):
    a = bench.tensor(np.zeros((5, 6)), name="table")
    with pytest.raises(kit.ShapeError, match="table"):
        a[key]


def test_a_transposed_quantized_matrix_reads_as_numpys(bench):
    w = bench.normal(64, 96, dtype="q4_1")
    assert np.array_equal(w.T.numpy(), w.numpy().T)
    with pytest.raises(kit.ShapeError, match="quantized"):
        w.T.set(np.zeros((96, 64)))
