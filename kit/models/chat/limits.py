"""What one rendering of an untrusted chat template may use: steps, characters, time, nesting."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

MAX_SOURCE = 1 << 17
MAX_CHARS = 1 << 24
MAX_CHARS_MADE = 1 << 28
MAX_STEPS = 1_000_000
MAX_ITEMS = 1 << 18
MAX_BITS = 100_000
MAX_SECONDS = 10.0


class LimitError(Exception):
    """A template asked for more than it may have."""


class Budget:
    """Counts down while one template is rendered; every spending looks at the clock."""

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.chars = MAX_CHARS_MADE
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int = 1, chars: int = 0) -> None:
        """Take steps and characters off.

        Raises:
            LimitError: nothing is left, or the time is over.
        """
        self.steps -= steps
        self.chars -= chars
        if self.steps < 0:
            raise LimitError(f"it takes more than {MAX_STEPS} steps")
        if self.chars < 0:
            raise LimitError(f"it makes more than {MAX_CHARS_MADE} characters on its way")
        if time.monotonic() > self.deadline:
            raise LimitError(f"it takes more than {MAX_SECONDS:g} seconds")


_current: contextvars.ContextVar[Budget] = contextvars.ContextVar("budget of the template being rendered")


@contextlib.contextmanager
def rendering() -> Iterator[Budget]:
    """Give what is rendered within the block a budget of its own."""
    budget = Budget()
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


_moment: contextvars.ContextVar[datetime.datetime | None] = contextvars.ContextVar("time shown", default=None)


@contextlib.contextmanager
def same_moment() -> Iterator[None]:
    """Show the same time to all templates rendered within the block."""
    token = _moment.set(datetime.datetime.now())
    try:
        yield
    finally:
        _moment.reset(token)


def now() -> datetime.datetime:
    """The time a template is shown."""
    return _moment.get() or datetime.datetime.now()


def spend(steps: int = 1, chars: int = 0) -> None:
    """Take from the budget of the rendering this runs in."""
    _current.get().spend(steps, chars)


def require_chars(n: int) -> None:
    """Raise LimitError before a text of ``n`` characters is made, if that is too long."""
    if n > MAX_CHARS:
        raise LimitError(f"it asks for a text of {n} characters; {MAX_CHARS} are the most")


def measured(value: Any) -> Any:
    """Return ``value`` after taking its size from the budget; LimitError if it alone is too large.

    A list that holds one list twice counts it twice: its text would.
    """
    if isinstance(value, str):
        require_chars(len(value))
        spend(chars=len(value))
    elif isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise LimitError(f"it makes a number of more than {MAX_BITS} bits")
        spend()
    elif isinstance(value, (list, tuple, dict, set)):
        spend(steps=1 + extent(value).n_items // 16)
    else:
        spend()
    return value


class Extent(NamedTuple):
    """How large a value is: values in it at any depth, characters of its texts, how deep lists lie in lists."""

    n_items: int
    n_chars: int
    depth: int


def extent(value: Any) -> Extent:
    """Walk a value; LimitError as soon as it is too large."""
    n_items, n_chars, deepest, waiting = 0, 0, 0, [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        n_items += 1
        deepest = max(deepest, depth)
        if isinstance(item, str):
            n_chars += len(item)
        elif isinstance(item, int):
            n_chars += item.bit_length() // 3  # about its digits
        elif isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple, set)):
            waiting += [(part, depth + 1) for part in item]
        if n_items + len(waiting) > MAX_ITEMS:
            raise LimitError(f"it makes a list of more than {MAX_ITEMS} values")
        require_chars(n_chars)
    return Extent(n_items, n_chars, deepest)


def listed(values: Iterable[Any]) -> list[Any]:
    """A list of what is made one by one; LimitError as soon as it is too long."""
    made = list(itertools.islice(values, MAX_ITEMS + 1))
    if len(made) > MAX_ITEMS:
        raise LimitError(f"it makes a list of more than {MAX_ITEMS} values")
    return made


def joined(pieces: Sequence[str], between: str = "") -> str:
    """Join texts, after a look at how long they get."""
    n = sum(map(len, pieces)) + len(between) * len(pieces)
    require_chars(n)
    spend(chars=n)
    return between.join(pieces)
