"""Ctrl-C at any moment leaves nothing half made: signals by a timer, hundreds of them, at random places."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kit
from kit.core.interrupts import uninterrupted

ROUNDS = 300


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Raise SIGINT after so many seconds, as a timer's signal handler does it."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted(work: Callable[[], None], alarm: Callable[[float], None], longest: float, seed: int = 1) -> int:
    """Run ``work`` again and again, each time with a SIGINT at a random moment; return how many it met."""
    chance, met = random.Random(seed), 0
    for _ in range(ROUNDS):
        try:
            try:
                alarm(1e-6 + chance.random() * longest)
                work()
            finally:
                alarm(0)
        except KeyboardInterrupt:
            met += 1
    return met


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt inside a finalizer
def test_contexts_and_graphs_are_whole_or_not_there(backend, alarm):
    def work() -> None:
        with kit.Context(backend) as ctx:
            x = ctx.input((8,), name="x")
            y = x
            for _ in range(20):
                y = y + x
            ctx.graph(y).compute(x=np.ones(8))

    work()
    before = {str(r) for r in kit.memory.live()}
    assert interrupted(work, alarm, 1.5e-3) > ROUNDS // 10
    gc.collect()
    assert {str(r) for r in kit.memory.live()} == before
    work()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_closing_is_done_once_begun(backend, alarm):
    def work() -> None:
        context = kit.Context(backend)
        try:
            context.tensor((64,), name="t").set(np.zeros(64))
            context.close()
        finally:
            context.close()

    before = len(kit.memory.live())
    interrupted(work, alarm, 3e-4)
    gc.collect()
    assert len(kit.memory.live()) == before


def cut_in_two_steps(steps: list[str]) -> None:
    with uninterrupted:
        with uninterrupted:
            signal.raise_signal(signal.SIGINT)
            steps.append("inner")
        steps.append("outer")


def test_an_interrupt_waits_for_the_end_of_what_must_not_be_cut():
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        cut_in_two_steps(steps)
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("moment", ["begins", "ends"])
def test_a_finalizer_that_runs_while_holding_begins_or_ends_disturbs_nothing(moment, monkeypatch):
    """Garbage is collected between any two lines, and a finalizer may hold interrupts too."""
    before, real = signal.getsignal(signal.SIGINT), signal.signal

    def meanwhile(number, action):
        monkeypatch.setattr(signal, "signal", real)
        with uninterrupted:
            pass
        return real(number, action)

    if moment == "begins":
        monkeypatch.setattr(signal, "signal", meanwhile)
    with uninterrupted:
        if moment == "ends":
            monkeypatch.setattr(signal, "signal", meanwhile)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), uninterrupted:
        signal.raise_signal(signal.SIGINT)
