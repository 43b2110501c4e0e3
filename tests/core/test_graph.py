"""Graphs: what they compute, feed and keep, across pools and contexts."""

from __future__ import annotations

import numpy as np
import pytest

import kit
from kit import ops
from kit.core.graph import Node


def test_building_computes_nothing(ctx):
    x = ctx.input((2,), name="x")
    node = (x + x) * 2
    graph = ctx.graph(node)
    assert repr(graph)
    with pytest.raises(kit.NotComputedError):
        node.numpy()


def test_feeds_go_by_name_or_by_tensor(ctx):
    x, y = ctx.input((2,), name="x"), ctx.input((2,))
    graph = ctx.graph(x - y)
    assert graph.compute({y: [1, 1]}, x=[5, 6]).numpy().tolist() == [4, 5]
    assert graph.compute(x=[7, 8]).numpy().tolist() == [6, 7]
    assert graph.inputs["x"].address == x.address


def test_wrong_feeds_are_refused(ctx):
    tokens = ctx.input((2,), name="tokens")
    graph = ctx.graph(tokens * 2)
    with pytest.raises(kit.ArgumentError, match=r"did you mean 'tokens'"):
        graph.compute(token=[1, 2])
    with pytest.raises(kit.ShapeError, match="tokens"):
        graph.compute(tokens=[1, 2, 3])
    with pytest.raises(kit.NotComputedError, match="tokens"):
        graph.compute()
    assert graph.compute(tokens=[1, 2]).numpy().tolist() == [2, 4]


def test_a_weight_that_was_never_set_is_named(ctx):
    x, w = ctx.input((2,), name="x"), ctx.tensor((2,), name="w")
    with pytest.raises(kit.NotComputedError, match="w"):
        ctx.graph(x * w).compute(x=[1, 2])


def test_computing_twice_gives_the_same(ctx):
    x = ctx.tensor((4,), name="x").set([1, 2, 3, 4])
    graph = ctx.graph(ops.sqr(ops.sqr(x + 0)))
    first = graph.compute().numpy()
    assert np.array_equal(graph.compute().numpy(), first)
    assert x.numpy().tolist() == [1, 2, 3, 4]


def test_an_input_survives_its_graph(ctx):
    x = ctx.input((4,), name="x")
    graph = ctx.graph((x + 1) * 2)
    graph.compute(x=[1, 2, 3, 4])
    assert x.numpy().tolist() == [1, 2, 3, 4]
    assert graph.compute().numpy().tolist() == [4, 6, 8, 10]


def test_many_outputs_come_in_order_and_stay(ctx):
    x = ctx.input((2,), name="x")
    doubled = x * 2
    squared = ops.sqr(doubled)
    view = squared[1:]
    graph = ctx.graph(squared, doubled, view, x)
    a, b, c, d = graph.compute(x=[1, 2])
    assert (a, b, c, d) == (squared, doubled, view, x)
    assert [t.numpy().tolist() for t in (a, b, c, d)] == [[4, 16], [2, 4], [16], [1, 2]]


def test_outputs_survive_other_graphs(ctx):
    x = ctx.input((64,), name="x")
    kept = ctx.graph(x * 2).compute(x=np.ones(64))
    for factor in range(3, 8):
        ctx.graph(ops.sqr(x * factor) + x).compute()
    assert kept.numpy().tolist() == [2] * 64


def test_an_output_may_be_used_by_a_later_graph(ctx):
    x = ctx.input((2,), name="x")
    doubled = x * 2
    ctx.graph(doubled).compute(x=[1, 2])
    tripled = doubled * 3
    assert ctx.graph(tripled).compute().numpy().tolist() == [6, 12]


def test_a_leaf_or_its_view_may_be_an_output(ctx):
    x = ctx.tensor((2, 3), name="x").set(np.arange(6).reshape(2, 3))
    assert ctx.graph(x).compute().numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert ctx.graph(x.T).compute().numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_write_into_a_leaf_reads_once_it_is_computed(ctx):
    into = ctx.tensor((3, 2)).set(0)
    node = ops.set_rows(into, ctx.tensor((1, 2)).set(5), ctx.tensor((1,), "i64").set([1]))
    with pytest.raises(kit.NotComputedError):
        node.numpy()
    with pytest.raises(kit.NotComputedError):
        node.reshape(6).numpy()
    ctx.graph(node).compute()
    for tensor in (node, into, node.reshape(3, 2)):
        assert tensor.numpy().tolist() == [[0, 0], [5, 5], [0, 0]]


def test_a_graph_needs_an_output(ctx):
    with pytest.raises(kit.ArgumentError):
        ctx.graph()


def test_shared_nodes_are_computed_once(ctx):
    x = ctx.tensor((2,)).set([1, 2])
    shared = x + x
    graph = ctx.graph(shared * shared + shared)
    assert (graph.n_nodes, graph.n_leafs) == (3, 1)
    assert graph.compute().numpy().tolist() == [6, 20]


def test_graphs_cross_contexts(backend):
    with kit.Context(backend) as weights, kit.Context(backend) as inputs, kit.Context(backend) as work:
        w, x, c = weights.tensor((2,)).set([2, 3]), inputs.input((2,), name="x"), work.tensor((2,)).set([1, 1])
        node = (w * x) + c
        graph = work.graph(node)
        assert graph.compute(x=[10, 20]).numpy().tolist() == [21, 61]
        inputs.close()
        with pytest.raises(kit.ClosedError):
            graph.compute()
        with pytest.raises(kit.ClosedError):
            work.graph(node)
        assert w.numpy().tolist() == [2, 3]


def test_graphs_do_not_cross_backends(ctx):
    with kit.Backend(n_threads=1) as other, kit.Context(other) as theirs:
        x = theirs.tensor((2,)).set([1, 2])
        with pytest.raises(kit.ArgumentError, match="backend"):
            ctx.graph(x * 2)


def test_a_chain_of_200_000_nodes():
    with kit.Backend(n_threads=1) as backend, kit.Context(backend) as ctx:
        x = ctx.tensor((1,)).set([1])
        node = x
        for _ in range(200_000):
            node = node + x
        graph = ctx.graph(node)
        assert graph.n_nodes == 200_000
        assert graph.compute().item() == 200_001
        assert "more nodes" in graph.text()


def test_a_chain_of_views_reads_through(ctx):
    x = ctx.tensor((2, 6)).set(np.arange(12).reshape(2, 6))
    node = x
    for _ in range(50):
        node = node.reshape(3, 4).reshape(2, 6)
    assert ctx.graph(node * 1).compute().numpy().tolist() == np.arange(12).reshape(2, 6).tolist()


def test_nodes_are_data(ctx):
    x, w = ctx.input((3, 8), name="x"), ctx.tensor((4, 8), "f16", name="w")
    graph = ctx.graph(ops.silu(x @ w.T).named("y"))
    product, activated = graph.nodes()
    assert isinstance(product, Node)
    assert (product.op, product.shape, product.ne, product.dtype) == ("MUL_MAT", (3, 4), (4, 3), "f32")
    assert (activated.name, activated.index, activated.nbytes, activated.is_view) == ("y", 1, 48, False)
    assert [node.op for node in graph] == ["MUL_MAT", "SILU"]


def test_text_shows_a_line_per_node(ctx):
    x = ctx.input((3, 8), name="x")
    text = ctx.graph(ops.silu(x).named("y")).text()
    assert "SILU" in text
    assert "y" in text
    assert "<- x" in text
    assert "(3, 8)" in text


def test_a_closed_graph_is_closed_and_its_values_stay(ctx):
    x = ctx.tensor((2,)).set([1, 2])
    graph = ctx.graph(x * 2)
    value = graph.compute()
    graph.close()
    graph.close()
    with pytest.raises(kit.ClosedError):
        graph.compute()
    assert "closed" in repr(graph)
    assert value.numpy().tolist() == [2, 4]


def test_graphs_take_turns_on_one_scheduler(ctx):
    x = ctx.input((8,), name="x")
    graphs = [ctx.graph(x * factor) for factor in range(1, 6)]
    for round_ in range(3):
        for factor, graph in enumerate(graphs, 1):
            assert graph.compute(x=np.full(8, round_)).numpy().tolist() == [round_ * factor] * 8


def test_a_failed_computation_leaves_nothing_readable_and_all_usable(ctx):
    table, rows = ctx.tensor((3, 2)).set(np.arange(6).reshape(3, 2)), ctx.input((1,), "i32", name="rows")
    node = ops.get_rows(table, rows)
    graph = ctx.graph(node)
    assert graph.compute(rows=[2]).numpy().tolist() == [[4, 5]]
    with pytest.raises(kit.GgmlAbort):
        graph.compute(rows=[3])
    with pytest.raises(kit.NotComputedError):
        node.numpy()
    assert graph.compute(rows=[0]).numpy().tolist() == [[0, 1]]


def test_a_compute_buffer_this_machine_does_not_have_is_refused(ctx):
    x = ctx.tensor((1,)).set([1])
    wide = ops.repeat(x, (1 << 20, 1 << 24))
    with pytest.raises(kit.OutOfMemory):
        ctx.graph(ops.sum(wide * 2)).compute()
    assert ctx.graph(x * 2).compute().numpy().tolist() == [2]


def test_nothing_is_live_when_the_backend_is_closed():
    before = kit.memory.live()
    with kit.Backend(n_threads=2) as backend, kit.Context(backend) as ctx:
        x = ctx.input((4, 4), name="x")
        ctx.graph(x @ x.T).compute(x=np.eye(4))
    assert kit.memory.live() == before
