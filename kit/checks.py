"""What an argument has to be, said once: whole numbers, numbers, switches."""

from __future__ import annotations

import numpy as np

from kit.errors import ArgumentError


def is_whole(value: object, least: int = 1, most: int | None = None) -> bool:
    """Whether ``value`` is a whole number (Python's or numpy's, no bool) from ``least`` to ``most`` (None: any)."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return bool(value >= least) and (most is None or bool(value <= most))


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return the argument ``value``, called ``name``, as an int; raise ArgumentError unless `is_whole`."""
    if not is_whole(value, least, most):
        end = "" if most is None else f" to {most}"
        raise ArgumentError(f"{name} is {value!r:.80}; it must be a whole number from {least}{end}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def flag(name: str, value: object) -> bool:
    """Return the argument ``value``, called ``name``, as a bool; raise ArgumentError unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{name} is {value!r:.80}; give True or False")
    return bool(value)
