"""What a function that watches a computation may do in the middle of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kit
from kit.core import transfer
from kit.core.native import lib
from kit.core.watch import Watch, Watched


class Outer:
    """Zero, plus one and squared four times: 1, 4, 25, 676. Each square is watched."""

    def __init__(self) -> None:
        self.backend = kit.Backend(n_threads=2)
        context = kit.Context(self.backend)
        x = context.input((8, 64), "f32", name="x")
        self.x = x
        self.one = context.tensor((8, 64), "f32", name="one")
        self.w = context.tensor((64, 64), "f32", name="w")
        self.squares = []
        for _ in range(4):
            x = kit.ops.sqr((x + self.one) @ self.w.T)
            self.squares.append(x)
        self.graph = context.graph(x)
        self.one.set(np.ones((8, 64), np.float32))
        self.w.set(np.eye(64, dtype=np.float32))

    def watched(self, call: Callable[[Any], None]) -> bool:
        """Compute under the watch; whether the result is right."""
        self.x.set(np.zeros((8, 64), np.float32))
        Watch([Watched(square, call=call) for square in self.squares]).compute(self.graph)
        values = transfer.read(self.squares[-1])
        return bool((values == 676.0).all())

    def plain(self) -> bool:
        return bool((self.graph.compute(x=np.zeros((8, 64))).numpy() == 676.0).all())


@pytest.fixture
def outer() -> Iterator[Outer]:
    made = Outer()
    assert made.plain()  # outputs have their memory now
    yield made
    made.backend.close()


def test_a_refused_call_in_the_function_does_not_spoil_the_computation(outer: Outer) -> None:
    texts = []

    def refuse(square: Any) -> None:
        try:
            lib.ggml_mul_mat(outer.graph._native.raw, outer.w.p, kit_wrong)
        except kit.GgmlAbort as error:
            texts.append(str(error))

    with kit.Context(outer.backend) as context:
        kit_wrong = context.tensor((2, 5), "f32", name="wrong").p
        assert outer.watched(refuse)
    assert len(texts) == 4
    assert outer.plain()


def test_a_computation_inside_a_computation(outer: Outer) -> None:
    with kit.Backend(n_threads=2) as inner:
        context = kit.Context(inner)
        a = context.input((32, 16), "f32", name="a")
        graph = context.graph(a @ a.T)
        values = np.ones((32, 16), np.float32)
        results = []
        assert outer.watched(lambda square: results.append(graph.compute(a=values).numpy()))
    assert len(results) == 4
    assert all((result == 16.0).all() for result in results)


@pytest.mark.parametrize("where", [0, 63], ids=["on the caller", "on a worker"])
def test_a_computation_that_aborts_inside_a_computation(
    outer: Outer, rows_on_two_threads: Any, where: int, n_os_threads: Callable[[], int]
) -> None:
    def abort(square: Any) -> None:
        with pytest.raises(kit.GgmlAbort):
            rows_on_two_threads.bad(where)

    assert outer.watched(abort)
    threads = n_os_threads()
    for _ in range(20):
        assert outer.watched(abort)
    assert n_os_threads() == threads
    assert rows_on_two_threads.good()
    assert outer.plain()


def test_what_the_function_raises_comes_out_and_ends_the_computation(outer: Outer) -> None:
    calls = []

    def give_up(square: Any) -> None:
        calls.append(square)
        if len(calls) == 2:
            raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        outer.watched(give_up)
    assert len(calls) == 2
    assert outer.plain()


def test_the_same_backend_used_from_inside_spoils_nothing_for_later(outer: Outer) -> None:
    """The scheduler is in the middle of one graph; whatever happens to the inner call, the next run is right."""
    with kit.Context(outer.backend) as context:
        x = context.input((4, 4), "f32", name="x")
        graph = context.graph(x + x)

        def inner(square: Any) -> None:
            graph.compute(x=np.ones((4, 4)))

        with contextlib.suppress(kit.KitError):
            outer.watched(inner)
        assert (graph.compute(x=np.ones((4, 4))).numpy() == 2.0).all()
    assert outer.plain()
