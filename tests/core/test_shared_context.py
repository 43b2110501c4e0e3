"""Threads that share a context: one that resets or closes it ends the others' work with an exception, no more."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import kit

SECONDS = 0.7


@pytest.mark.parametrize("ending", ["reset", "close"])
def test_another_thread_may_end_a_context_in_use(backend: kit.Backend, ending: str) -> None:
    current = [kit.Context(backend)]
    stop = time.monotonic() + SECONDS
    foreign: list[BaseException] = []

    def compute() -> None:
        while time.monotonic() < stop:
            try:
                x = current[0].tensor((16,))
                x.set(np.ones(16))
                current[0].graph(x * 2.0).compute()
            except kit.KitError:
                continue  # its context has just been ended
            except BaseException as error:
                foreign.append(error)
                raise

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() < stop:
        getattr(current[0], ending)()
        if ending == "close":
            current[0] = kit.Context(backend)
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    current[0].close()
    assert not foreign
    with kit.Context(backend) as ctx:
        y = ctx.tensor((4,)).set(np.ones(4)) * 3.0
        assert ctx.graph(y).compute().numpy().tolist() == [3.0] * 4
