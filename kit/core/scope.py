"""Scopes: what kit is doing, by name - load, session open, prefill, token 7, blk.3.resid - and regions people name.

The current scope is a number in a context variable, so that threads and tasks have their own; an allocation hook
reads it natively. Entering a scope while nobody tracks costs one test.

What an open object keeps for later - built graphs, the scheduler's buffers - is made in a scope that says so, and
is no leak for being there.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager

from kit.errors import ArgumentError

#: Number of the current scope; 0 outside of all.
current: contextvars.ContextVar[int] = contextvars.ContextVar("kit_scope")

_NOTHING = contextlib.nullcontext()
# No lock: each step below is one operation of a dict, so that a finalizer, a signal handler or another thread may
# enter a scope in between.
_known: dict[tuple[int, str, bool], int] = {}
_scopes: dict[int, tuple[tuple[str, ...], bool]] = {0: ((), False)}  # by number: the names, and whether it is kept
_numbers = itertools.count(1)
_tracked = False


def scope(name: str) -> AbstractContextManager[None]:
    """Return a context manager that names what happens inside, if anybody tracks."""
    return _entered(name) if _tracked else _NOTHING


def keeping(name: str) -> AbstractContextManager[None]:
    """Return a `scope` for what its owner keeps, by design, until it is closed."""
    return _entered(name, True) if _tracked else _NOTHING


def region(name: str) -> AbstractContextManager[None]:
    """Return a context manager that names what happens inside, in every report of a tracker.

    Raises:
        ArgumentError: ``name`` is no text.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"a region's name is text, not {type(name).__name__}: write region({str(name)!r})")
    return _entered(name)


def scope_path(number: int) -> tuple[str, ...]:
    """Return the names of scope ``number`` from the outermost to the innermost."""
    return _scopes[number][0] if number in _scopes else ()


def is_kept(number: int) -> bool:
    """Whether scope ``number``, or one around it, is for what its owner keeps."""
    return number in _scopes and _scopes[number][1]


def tracking(on: bool) -> None:
    """Note whether anybody tracks."""
    global _tracked
    _tracked = on


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
    number = _known.get(key)
    if number is None:
        fresh = next(_numbers)
        path, parent_kept = _scopes[parent]
        _scopes[fresh] = ((*path, name), kept or parent_kept)
        number = _known.setdefault(key, fresh)
    return number
