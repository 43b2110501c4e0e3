"""What went wrong in several readers at once: the first real error is raised, with the others as notes."""

from __future__ import annotations

import errno
import threading

from kit.errors import KitError

#: What readers meet because another one failed: never the cause where there is another.
_CONSEQUENCES = frozenset((errno.EBADF, errno.ECANCELED))


class Failures:
    """Errors in the order in which they happened, whoever looks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: list[tuple[int, BaseException]] = []

    def add(self, reader: int, error: BaseException) -> None:
        """Note what ended a reader; called on its own thread as soon as it happened."""
        with self._lock:
            self._errors.append((reader, error))

    def __bool__(self) -> bool:
        return bool(self._errors)

    def annotate(self, error: BaseException) -> None:
        """Attach all that was noted to ``error``, which came from elsewhere (an interrupt)."""
        with self._lock:
            noted = list(self._errors)
        for reader, other in noted:
            _attach(error, reader, other)

    def raise_first(self) -> None:
        """Raise the earliest error that is no consequence of another one; do nothing where there is none."""
        with self._lock:
            noted = list(self._errors)
        if not noted:
            return
        first = next((entry for entry in noted if not _is_consequence(entry[1])), noted[0])
        for reader, other in noted:
            if other is not first[1]:
                _attach(first[1], reader, other)
        raise first[1]


def _is_consequence(error: BaseException) -> bool:
    return getattr(error, "errno", None) in _CONSEQUENCES


def _attach(error: BaseException, reader: int, other: BaseException) -> None:
    kind = "" if isinstance(other, KitError) else f"{type(other).__name__}: "
    error.add_note(f"reader {reader} also failed: {kind}{other}")
