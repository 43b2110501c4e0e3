"""Ten thousand refused calls: the process lives, memory stays, the next computation is right."""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kit
from kit.core import ops

N_WARM, N_COUNTED = 1_000, 10_000


def resident_nbytes() -> int:
    """Anonymous memory of this process that is in RAM: what a leak would grow."""
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


@pytest.fixture
def refusals(backend: kit.Backend, tmp_path: pathlib.Path) -> Iterator[list[Callable[[], object]]]:
    """One call per kind of refusal; each must raise a KitError."""
    ctx = kit.Context(backend)
    wide, node = ctx.input((2, 7), "f32", "bad"), ops.silu(ctx.input((4,), "f32", "z"))
    a = ctx.tensor((3, 4), "f32", "a").set(np.ones((3, 4)))
    b = ctx.tensor((5, 4), "f32", "b").set(np.ones((5, 4)))
    gone = kit.Context(backend)
    dead = gone.tensor((3, 4), "f32", "dead").set(np.ones((3, 4)))
    dead_graph = gone.graph(ops.silu(dead))
    gone.close()
    full = kit.Context(backend, policy="fixed", slots=2)
    full_x = full.tensor((4,), "f32", "x")
    full.tensor((4,), "f32", "y")
    unset = ctx.graph(ops.add(ctx.tensor((4,), "f32", "never set"), ctx.input((4,), "f32", "input")))
    junk, cut = tmp_path / "junk.gguf", tmp_path / "cut.gguf"
    junk.write_bytes(b"this is no model at all" * 10)
    cut.write_bytes(b"GGUF\x03\0\0\0" + (10**6).to_bytes(8, "little") + bytes(8))
    closed = kit.Backend(n_threads=1)
    closed.close()
    yield [
        lambda: ops.add(a, b),
        lambda: ops.mul_mat(a, wide),
        lambda: ops.reshape(a, (5, 5)),
        lambda: ops.silu(dead),
        lambda: ops.add(a, dead),
        lambda: dead.numpy(),
        lambda: dead_graph.compute(),
        lambda: gone.tensor((3,)),
        lambda: full.tensor((4,)),
        lambda: ops.silu(full_x),
        lambda: full.graph(ops.add(full_x, full_x)),
        lambda: ctx.tensor((3, 0)),
        lambda: ctx.tensor((3, 5), "q4_1"),
        lambda: ctx.tensor((1, 2, 3, 4, 5)),
        lambda: ctx.tensor((4,), "q9_9"),
        lambda: a.set(np.ones((4, 3))),
        lambda: node.numpy(),
        lambda: unset.compute(),
        lambda: unset.compute(wrong=np.ones(4)),
        lambda: kit.GGUFFile(junk),
        lambda: kit.GGUFFile(cut),
        lambda: kit.load(junk, backend=backend),
        lambda: kit.load(tmp_path / "none.gguf", backend=backend),
        lambda: kit.Context(closed),
        lambda: kit.Context(backend, slots=0),
        lambda: kit.Buffer.allocate(backend.buffer_type(), 1 << 50, purpose="inputs", owner="test", name="huge"),
    ]
    ctx.close()
    full.close()


def test_memory_stays_and_the_next_computation_is_right(refusals, backend):
    def refuse(n: int) -> None:
        for i in range(n):
            with pytest.raises(kit.KitError):
                refusals[i % len(refusals)]()

    ctx = kit.Context(backend)
    x = ctx.input((4, 8), "f32", "x")
    graph = ctx.graph(ops.silu(ops.mul(x, x)))
    values = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    square = values.astype(np.float64) ** 2
    expected = square / (1 + np.exp(-square))
    refuse(N_WARM)
    graph.compute(x=values)
    live, before = kit.memory.live(), resident_nbytes()
    refuse(N_COUNTED)
    grown = resident_nbytes() - before
    assert kit.memory.live() == live
    assert np.allclose(graph.compute(x=values).numpy(), expected, atol=1e-5)
    assert grown < 1_000_000, f"{grown} bytes more"
    ctx.close()


def test_each_kind_is_refused(refusals):
    for refuse in refusals:
        with pytest.raises(kit.KitError):
            refuse()
