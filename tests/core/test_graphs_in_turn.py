"""Graphs that share one scheduler: each computes what it would alone, whatever was computed before.

ggml plans memory by the sizes of nodes only, and trusts every address a tensor already has; the golden values
here are numpy's.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit import ops
from kit.core.native import ffi, lib


def test_a_graph_does_not_take_the_plan_of_another_with_nodes_of_the_same_sizes(ctx):
    x = ctx.input((4,), name="x")
    squared = ops.sqr(ops.sqr(x))
    chain = ctx.graph(squared + squared)
    wide = ctx.graph(ops.sqr(x) + ops.sqrt(x))
    for _ in range(2):
        assert chain.compute(x=np.ones(4)).numpy().tolist() == [2] * 4
        assert wide.compute(x=np.full(4, 4)).numpy().tolist() == [18] * 4


def test_after_a_larger_graph_a_smaller_one_moves_to_where_the_memory_is_now():
    with kit.Backend(n_threads=1) as own, kit.Context(own) as ctx:
        x, y = ctx.input((64, 64), name="x"), ctx.input((1024, 1024), name="y")
        middle, large_middle = x + x, y + y
        small, large = ctx.graph(middle * middle), ctx.graph(large_middle * large_middle)
        ones = np.ones((64, 64))
        small.compute(x=ones)
        large.compute(y=np.ones((1024, 1024)))
        assert middle.p.data == ffi.NULL  # nothing points into the memory that was given up
        first = int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_base(large_middle.p.buffer)))
        end = first + int(lib.ggml_backend_buffer_get_size(large_middle.p.buffer))
        assert (small.compute(x=ones).numpy() == 4).all()
        assert first <= int(ffi.cast("uintptr_t", middle.p.data)) < end


def test_what_one_graph_passes_through_another_may_give_out(ctx):
    x = ctx.input((4,), name="x")
    middle = x * 2
    through = ctx.graph(middle + 1)
    through.compute(x=np.ones(4))
    out = ctx.graph(middle)
    assert out.compute(x=np.full(4, 5)).numpy().tolist() == [10] * 4
    ctx.graph(ops.sqr(x) * 3).compute(x=np.full(4, 7))
    assert middle.numpy().tolist() == [10] * 4
    assert through.compute(x=np.full(4, 2)).numpy().tolist() == [5] * 4
    assert middle.numpy().tolist() == [4] * 4  # computed anew on the way


def test_a_view_follows_its_source_from_one_place_to_the_next(ctx):
    x = ctx.input((2, 256), name="x")
    middle = x + x
    first = ctx.graph(middle * 3)
    first.compute(x=np.ones((2, 256)))
    second = ctx.graph(middle[1:] * 5)  # made while its source had a place in the compute buffer
    big = ctx.graph((ctx.input((512, 512), name="big") * 2) + 1)
    big.compute(big=np.ones((512, 512)))
    assert (second.compute(x=np.ones((2, 256))).numpy() == 10).all()
    big.compute(big=np.ones((512, 512)))
    assert (second.compute(x=np.ones((2, 256))).numpy() == 10).all()


def test_a_graph_that_was_dropped_leaves_its_nodes_usable():
    with kit.Backend(n_threads=1) as own, kit.Context(own) as ctx:
        x = ctx.input((64,), name="x")
        middle = x + x
        ctx.graph(middle * 2).compute(x=np.ones(64))  # nobody holds it: collected while it has its place
        ctx.graph(ctx.input((512, 512), name="y") * 2 + 1).compute(y=np.ones((512, 512)))
        assert (ctx.graph(middle * 3).compute(x=np.ones(64)).numpy() == 6).all()
        assert (ctx.graph(middle).compute(x=np.ones(64)).numpy() == 2).all()


OPERATIONS = ((lambda a, b: a + b), (lambda a, b: a - b), (lambda a, b: a * b))
wiring = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(graphs=st.lists(wiring, min_size=2, max_size=4), turns=st.lists(st.integers(0, 3), min_size=3, max_size=8))
def test_any_graphs_in_any_turns_compute_what_numpy_does(graphs, turns):
    values = np.array([1.0, 2.0, -1.0, 0.5], np.float32)
    with kit.Backend(n_threads=1) as own, kit.Context(own) as ctx:
        x = ctx.input((4,), name="x")
        shared = x + 1
        built = []
        for steps in graphs:
            nodes, numbers = [x, shared], [values, values + 1]
            for op, left, right in steps:
                i, j = left % len(nodes), right % len(nodes)
                nodes.append(ops.clamp(OPERATIONS[op](nodes[i], nodes[j]), -8, 8))
                numbers.append(np.clip(OPERATIONS[op](numbers[i], numbers[j]), -8, 8).astype(np.float32))
            built.append((ctx.graph(nodes[-1]), numbers[-1]))
        for turn in turns:
            graph, expected = built[turn % len(built)]
            np.testing.assert_allclose(graph.compute(x=values).numpy(), expected, rtol=1e-6)
