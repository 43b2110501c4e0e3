"""Who keeps a leak alive: written as people would reach it, and never somebody else who lies there now."""

from __future__ import annotations

import contextvars
import pathlib
import sys
import types
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

import kit
import kit.memory
from kit.core.buffer import BufferSet


def allocated(backend: kit.Backend) -> BufferSet:
    ctx = kit.Context(backend)
    ctx.input((100,), "f32", name="mask").set(np.zeros(100, np.float32))
    return ctx.detach()


def held_by(backend: kit.Backend, keep: Callable[[BufferSet], object]) -> tuple[str, ...]:
    """Allocate, let ``keep`` keep it, and say who is told to hold it."""
    with kit.Tracker() as mem:
        keep(allocated(backend))
    (leak,) = mem.report().leaks
    return leak.held_by


class Registry:
    items: list[BufferSet] = []  # noqa: RUF012


class Server:
    def __init__(self) -> None:
        self.sessions: dict[int, kit.Session] = {}


here = types.SimpleNamespace()
queue: deque[object] = deque()
variable: contextvars.ContextVar[BufferSet] = contextvars.ContextVar("variable")
server = Server()


def test_class_attributes_nested_containers_and_attributes(backend: kit.Backend) -> None:
    assert held_by(backend, lambda made: Registry.items.append(made)) == (f"{__name__}.Registry.items[0]",)
    Registry.items.pop().close()
    assert held_by(backend, lambda made: setattr(here, "made", made)) == (f"{__name__}.here.made",)
    here.made.close()
    deep: Callable[[BufferSet], object] = lambda made: queue.append([{"a": {2: ((made,),)}}])  # noqa: E731
    assert held_by(backend, deep) == (f"{__name__}.queue[0][0]['a'][2][0][0]",)
    queue.clear()


def test_a_module_that_was_made_by_hand(backend: kit.Backend) -> None:
    module = types.ModuleType("made_by_hand")
    sys.modules["made_by_hand"] = module
    found = held_by(backend, lambda made: setattr(module, "made", made))
    del sys.modules["made_by_hand"], module.made
    assert found == ("made_by_hand.made",)


def test_a_context_variable(backend: kit.Backend) -> None:
    context = contextvars.copy_context()
    assert held_by(backend, lambda made: context.run(variable.set, made)) == ("context variable variable",)


def test_a_closure_by_its_function_and_variable(backend: kit.Backend) -> None:
    kept = []

    def outer(made: BufferSet) -> None:
        def inner() -> BufferSet:
            return made

        kept.append(inner)

    (text,) = held_by(backend, outer)
    assert text.startswith("made in the closure of ") and text.endswith("outer.<locals>.inner")


def test_who_was_closed_is_held_by_nobody(backend: kit.Backend) -> None:
    with kit.Tracker() as mem:
        leaked = allocated(backend)
    report = mem.report()
    leaked.close()
    others = [allocated(backend) for _ in range(50)]  # one of them lies where the leak lay
    assert report.leaks[0].held_by == ()
    for buffers in others:
        buffers.close()


@pytest.mark.model
def test_sessions_and_models_are_named_with_who_holds_them(demo_model_path: pathlib.Path) -> None:
    with kit.Tracker() as mem:
        model = kit.load(demo_model_path, n_threads=1, progress=False)
        for i in range(4):
            server.sessions[i] = model.session(n_ctx=64)
    leaks = mem.report().leaks
    for session in server.sessions.values():
        session.close()
    server.sessions.clear()
    model.close()
    of_sessions = [leak for leak in leaks if leak.count == 4]
    assert {leak.purpose for leak in of_sessions} == {"kv cache", "inputs", "metadata"}
    for leak in of_sessions:
        assert (leak.verdict, leak.n_passes) == ("growth", 4)
        assert f"{__name__}.server.sessions[0] (Session)" in leak.held_by
    (mapping,) = [leak for leak in leaks if leak.kind == "mapping"]
    assert any(text.startswith("model in ") and text.endswith("(Model)") for text in mapping.held_by)
