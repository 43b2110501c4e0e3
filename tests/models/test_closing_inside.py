"""A patch function cannot free what the pass that called it is using."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kit

CLOSINGS: dict[str, Callable[[kit.Session], object]] = {
    "the weights": lambda session: session.model.weights.close(),
    "the weights' context": lambda session: session.model.weights.context.close(),
    "the weights' context, by a reset": lambda session: session.model.weights.context.reset(),
    "the cache's context": lambda session: session.cache.context.close(),
    "the cache's buffer": lambda session: session.cache.context.buffers[0].close(),
    "the session": lambda session: session.close(),
    "the model": lambda session: session.model.close(),
    "the backend": lambda session: session.model.backend.close(),
}


@pytest.mark.parametrize("what", CLOSINGS)
def test_closing_it_inside_a_patch_is_refused_and_the_session_goes_on(session: kit.Session, what: str) -> None:
    expected = session.run([1, 2, 3]).logits
    session.reset()
    with pytest.raises(kit.BusyError):
        session.run([1, 2, 3], patch={"blk.0.resid": lambda value: CLOSINGS[what](session)})
    session.reset()
    assert np.array_equal(session.run([1, 2, 3]).logits, expected)
