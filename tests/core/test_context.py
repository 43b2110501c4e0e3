"""Contexts: metadata that grows, ownership of buffers, and what ends with them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import kit
from kit.core.buffer import Buffer, aligned
from kit.core.pools import TENSOR_OVERHEAD


def _use_up(x):
    for _ in range(10):
        x + x


def live_kinds():
    kinds = [resource.kind for resource in kit.memory.live()]
    return {kind: kinds.count(kind) for kind in ("context", "buffer")}


def test_a_context_grows_and_nothing_moves(ctx):
    x = ctx.tensor((2,)).set([1, 2])
    first = x + x
    address, node = first.address, first
    for _ in range(5000):
        node = node + x
    assert ctx.n_pools > 3
    assert first.address == address
    assert ctx.graph(node).compute().numpy().tolist() == [5002, 10004]


def test_a_context_costs_little_more_than_its_tensors(ctx):
    x = ctx.tensor((1,))
    for _ in range(50_000):
        x + x
    assert ctx.metadata_nbytes <= 1.34 * 50_000 * TENSOR_OVERHEAD  # FACTS section 3: what pools of slots cost


def test_a_context_holds_no_data(ctx):
    ctx.tensor((1024, 1024))
    assert live_kinds()["buffer"] == 0
    assert ctx.metadata_nbytes < 1 << 16


def test_a_fixed_context_says_when_it_is_full(backend):
    with kit.Context(backend, policy="fixed", slots=4, name="small") as ctx:
        x = ctx.tensor((2,)).set([1, 2])
        node = x + x + x + x
        with pytest.raises(kit.ContextError, match=r"small.*4"):
            node + x
        with pytest.raises(kit.ContextError, match="small"):
            ctx.tensor((1,))
        assert ctx.graph(node).compute().numpy().tolist() == [4, 8]
        ctx.reset()
        assert ctx.tensor((2,)).set([3, 4]).numpy().tolist() == [3, 4]


@pytest.mark.parametrize("make", [lambda c: kit.ops.conv_1d(*c), lambda c: kit.ops.argsort_top_k(c[1], 2)])
def test_operations_of_several_objects_never_overfill(backend, make):
    for slots in range(1, 12):
        with kit.Context(backend, policy="fixed", slots=slots) as ctx:
            try:
                pair = ctx.tensor((2, 3, 2)).set(1), ctx.tensor((1, 3, 6)).set(1)
                node = make(pair)
            except kit.ContextError:
                continue
            assert np.isfinite(ctx.graph(node).compute().numpy()).all()


def test_the_no_alloc_policy_allows_what_there_is_room_for(backend):
    with kit.Context(backend, slots=8) as ctx:
        x = ctx.tensor((2,)).set([1, 2])
        ctx.freeze()
        node = x + x
        assert node.shape == (2,)
        late = ctx.tensor((2,), name="late")
        with pytest.raises(kit.ContextError, match="late"):
            late.set([1, 2])
        with pytest.raises(kit.ContextError, match="allocate"):
            _use_up(x)


def test_memory_of_ones_own_for_metadata(backend):
    memory = aligned(10 * TENSOR_OVERHEAD)
    with kit.Context(backend, memory=memory) as ctx:
        x = ctx.tensor((2,)).set([1, 2])
        assert memory.ctypes.data <= x.address < memory.ctypes.data + memory.nbytes
        with pytest.raises(kit.ContextError):
            _use_up(x)
    for wrong in (np.zeros(100, np.uint8), aligned(4096)[1:]):
        with pytest.raises(kit.ArgumentError):
            kit.Context(backend, memory=wrong)


@pytest.mark.parametrize("slots", [0, -1, 1 << 40])
def test_impossible_pools_are_refused(backend, slots):
    with pytest.raises(kit.ArgumentError, match="slots"):
        kit.Context(backend, slots=slots)


def test_leaves_are_allocated_together(ctx):
    tensors = [ctx.tensor((10,), name=f"t{i}") for i in range(5)]
    ctx.allocate()
    assert [buffer.purpose for buffer in ctx.buffers] == ["weights"]
    for i, tensor in enumerate(tensors):
        tensor.set(i)
    assert [tensor.numpy()[9] for tensor in tensors] == [0, 1, 2, 3, 4]


def test_inputs_lie_apart_from_weights(ctx):
    ctx.tensor((10,), name="w").set(0)
    ctx.input((10,), name="x").set(0)
    assert sorted(buffer.purpose for buffer in ctx.buffers) == ["inputs", "weights"]


def test_derived_contexts_share_the_core(ctx, backend):
    x = ctx.for_inputs().tensor((2,), name="x")
    w = ctx.for_device(backend.devices[-1], purpose="kv cache").tensor((2,), name="w")
    w.set([3, 4])
    assert ctx.graph(x * w).compute({x: [1, 2]}).numpy().tolist() == [3, 8]
    assert {buffer.purpose for buffer in ctx.buffers} >= {"inputs", "kv cache"}
    with pytest.raises(kit.ArgumentError, match="GPU"):
        ctx.for_device("GPU.7")


def test_a_tensor_placed_in_ones_own_memory(ctx):
    memory = aligned(1024)
    with Buffer.over(memory, name="mine") as buffer:
        x = ctx.tensor((4,), name="x")
        ctx.place(x, buffer, 64)
        x.set([1, 2, 3, 4])
        assert memory[64:80].view("f4").tolist() == [1, 2, 3, 4]
        memory[64:68].view("f4")[:] = 9
        assert x.numpy().tolist() == [9, 2, 3, 4]
        assert ctx.buffers == ()
        with pytest.raises(kit.ContextError, match="x"):
            ctx.place(x, buffer, 128)


def test_a_buffer_lives_as_long_as_tensors_in_it(ctx):
    x = ctx.tensor((4,), name="x")
    ctx.place(x, Buffer.over(aligned(1024)))
    gc.collect()
    assert x.set([1, 2, 3, 4]).numpy().tolist() == [1, 2, 3, 4]


def test_tensors_in_a_closed_buffer_say_so(ctx):
    x, y = ctx.tensor((4,), name="x"), ctx.tensor((4,), name="y")
    with Buffer.over(aligned(1024), name="mine") as buffer:
        ctx.place(x, buffer)
        y.set(1)
        graph, other = ctx.graph(x.set([1, 2, 3, 4]) * 2), ctx.graph(y * 2)
        graph.compute()
    for use in (x.numpy, x[1:].numpy, lambda: x.set([1, 2, 3, 4]), graph.compute):
        with pytest.raises(kit.ClosedError, match=r"x.*mine"):
            use()
    assert other.compute().numpy().tolist() == [2, 2, 2, 2]


def test_outputs_in_a_buffer_of_a_closed_context_say_so(backend):
    with kit.Context(backend) as young:
        with kit.Context(backend) as younger:
            x = young.tensor((2,)).set([1, 2])
            mine = x * 2
            theirs = younger.tensor((2,)).set([1, 2]) + x
            younger.graph(theirs, mine).compute()
        with pytest.raises(kit.ClosedError):
            mine.numpy()


@pytest.mark.parametrize("offset", [-64, 1, 1024, 1008])
def test_a_tensor_cannot_be_placed_outside(ctx, offset):
    with Buffer.over(aligned(1024)) as buffer, pytest.raises(kit.ArgumentError, match="x"):
        ctx.place(ctx.tensor((8,), name="x"), buffer, offset)


@pytest.mark.parametrize("memory", [b"1234" * 64, np.zeros((8, 8))[:, ::2], aligned(256)[1:]])
def test_memory_ggml_cannot_use_is_refused(memory):
    with pytest.raises(kit.ArgumentError):
        Buffer.over(memory)


def test_reset_ends_tensors_and_graphs_and_frees_buffers(backend):
    with kit.Context(backend, name="mine") as ctx:
        x = ctx.tensor((2,), name="x").set([1, 2])
        node = x + x
        graph = ctx.graph(node)
        graph.compute()
        pools = ctx.n_pools
        ctx.reset()
        assert (ctx.n_pools, live_kinds()["buffer"]) == (pools, 0)
        for use in (lambda: x + x, x.numpy, node.numpy, graph.compute, lambda: x.name, lambda: x.set([1, 2])):
            with pytest.raises(kit.ClosedError):
                use()
        assert "gone" in repr(x)
        y = ctx.tensor((2,)).set([5, 6])
        assert ctx.graph(y + y).compute().numpy().tolist() == [10, 12]


def test_reset_reuses_pools_for_ever():
    with kit.Backend(n_threads=1) as backend, kit.Context(backend) as ctx:
        sizes = []
        for _ in range(20):
            x = ctx.tensor((2,)).set([1, 1])
            node = x
            for _ in range(500):
                node = node + x
            ctx.graph(node).compute()
            sizes.append((ctx.metadata_nbytes, len(kit.memory.live())))
            ctx.reset()
        assert len(set(sizes)) == 1


def test_close_gives_everything_back_and_may_be_repeated(backend):
    before = live_kinds()
    ctx = kit.Context(backend, name="mine")
    x = ctx.tensor((2,), name="x").set([1, 2])
    graph = ctx.graph(x + x)
    graph.compute()
    ctx.close()
    ctx.close()
    assert ctx.closed
    assert live_kinds() == before
    for use in (x.numpy, graph.compute, lambda: ctx.tensor((1,)), lambda: ctx.graph(x), ctx.reset, ctx.allocate):
        with pytest.raises(kit.ClosedError, match=r"mine|graph"):
            use()


def test_detach_keeps_the_buffers_only(backend):
    ctx = kit.Context(backend, name="mine")
    x = ctx.tensor((256,)).set(1)
    kept = ctx.detach()
    assert (ctx.closed, len(kept), live_kinds()["buffer"]) == (True, 1, 1)
    assert kept.nbytes >= 1024
    with pytest.raises(kit.ClosedError):
        x.numpy()
    kept.close()
    assert kept.nbytes == 0


def test_a_lost_context_is_given_back_by_the_garbage_collector(backend):
    ctx = kit.Context(backend)
    ctx.graph(ctx.tensor((2,)).set([1, 2]) * 2).compute()
    lost = weakref.ref(ctx)
    del ctx
    gc.collect()
    assert lost() is None


def test_a_context_of_its_own_closes_its_backend():
    before = kit.memory.live()
    with kit.Context() as ctx:
        backend = ctx.backend
        assert ctx.graph(ctx.tensor((2,)).set([1, 2]) * 2).compute().numpy().tolist() == [2, 4]
    assert backend.closed
    assert kit.memory.live() == before


def test_closing_a_backend_closes_its_contexts():
    before = kit.memory.live()
    backend = kit.Backend(n_threads=1)
    ctx = kit.Context(backend)
    x = ctx.tensor((2,)).set([1, 2])
    ctx.graph(x + x).compute()
    backend.close()
    assert ctx.closed
    assert kit.memory.live() == before
    with pytest.raises(kit.ClosedError):
        kit.Context(backend)


def test_thousands_of_contexts_live_side_by_side(backend):
    contexts = [kit.Context(backend, slots=4) for _ in range(2000)]
    assert live_kinds()["context"] >= 2000
    for ctx in contexts:
        ctx.close()


def test_nodes_over_a_context_that_was_reset_do_not_come_back_to_life(backend):
    with kit.Context(backend, name="old") as old, kit.Context(backend, name="young") as young:
        mine, theirs = young.tensor((2,)).set([1, 2]), old.tensor((2,)).set([1, 2])
        stale = mine + theirs
        old.reset()
        fresh = old.tensor((2,)).set([3, 4])
        with pytest.raises(kit.ClosedError, match="old"):
            mine + fresh
        with pytest.raises(kit.ClosedError, match="old"):
            young.graph(stale)


def test_devices_print_as_a_table():
    found = kit.devices()
    assert found[0].name in repr(found)
    assert [device.kind for device in found].count("cpu") == 1
    assert all(device.memory_free <= device.memory_total for device in found)
    assert "<table>" in found._repr_html_()
    assert found.rows()[0][0] == found[0].name
