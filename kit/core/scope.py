"""Scopes: what kit is doing, by name - load, session open, prefill, token 7, blk.3.resid - and regions people name.

The current scope is a number in a context variable, so that threads and tasks have their own; an allocation hook
reads it natively. Entering a scope while nobody tracks costs one test.

What an open object keeps for later - built graphs, the scheduler's buffers - is made in a scope that says so, and
is no leak for being there.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

#: Number of the current scope; 0 outside of all.
current: contextvars.ContextVar[int] = contextvars.ContextVar("kit_scope")

_NOTHING = contextlib.nullcontext()
_known: dict[tuple[int, str, bool], int] = {}
_paths: list[tuple[str, ...]] = [()]
_kept: list[bool] = [False]
_lock = threading.Lock()
_trackers = 0


def scope(name: str) -> AbstractContextManager[None]:
    """Return a context manager that names what happens inside, if anybody tracks."""
    return _entered(name) if _trackers else _NOTHING


def keeping(name: str) -> AbstractContextManager[None]:
    """Return a `scope` for what its owner keeps, by design, until it is closed."""
    return _entered(name, True) if _trackers else _NOTHING


def region(name: str) -> AbstractContextManager[None]:
    """Return a context manager that names what happens inside, in every report of a tracker."""
    return _entered(name)


def scope_path(number: int) -> tuple[str, ...]:
    """Return the names of scope ``number`` from the outermost to the innermost."""
    return _paths[number] if 0 <= number < len(_paths) else ()


def is_kept(number: int) -> bool:
    """Whether scope ``number``, or one around it, is for what its owner keeps."""
    return 0 <= number < len(_kept) and _kept[number]


def tracking(change: int) -> None:
    """Note that a tracker began (+1) or ended (-1)."""
    global _trackers
    with _lock:
        _trackers += change


@contextlib.contextmanager
def _entered(name: str, kept: bool = False) -> Iterator[None]:
    token = current.set(_number(current.get(0), name, kept))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a generator may be closed from another context
            current.reset(token)


def _number(parent: int, name: str, kept: bool) -> int:
    key = (parent, name, kept)
    with _lock:
        if key not in _known:
            _known[key] = len(_paths)
            _paths.append((*_paths[parent], name))
            _kept.append(kept or _kept[parent])
        return _known[key]
