"""Ctrl-C held back while something is half made: between a native call and the line that notes its result.

``with uninterrupted:`` round an allocation and its registration, or round a close, lets both happen or neither;
the interrupt then takes effect at the end of the outermost one, or where that one looks. Only Python's main thread
is ever interrupted: elsewhere, or where SIGINT has no Python handler, this does nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Self


class Uninterrupted:
    """See the module; there is one, for the one main thread."""

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Any = None
        self._noted = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True  # not the frame: a traceback would keep alive what it holds

    def check(self) -> None:
        """Let an interrupt that came in the meantime take effect here, if this is the outermost one.

        Raises:
            KeyboardInterrupt: by the handler there was before, if that one raises it.
        """
        if self._noted and self._depth == 1 and threading.get_ident() == _main:
            self._noted = False
            self._handler(signal.SIGINT, sys._getframe())

    def __enter__(self) -> Self:
        if threading.get_ident() != _main:
            return self
        self._depth += 1  # first: a finalizer may run between any two lines, and enter and leave by itself
        try:
            if self._depth == 1:
                handler = signal.getsignal(signal.SIGINT)
                self._handler = handler if callable(handler) else None
                if self._handler is not None:
                    signal.signal(signal.SIGINT, self._note)
        except BaseException:
            self._depth -= 1
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() != _main:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        handler, self._handler = self._handler, None
        try:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        finally:
            self._depth -= 1  # last, for the same reason
        if self._noted and handler is not None:
            self._noted = False
            handler(signal.SIGINT, sys._getframe())


_main = threading.main_thread().ident
uninterrupted = Uninterrupted()


def _after_fork() -> None:
    global _main
    _main = threading.main_thread().ident


os.register_at_fork(after_in_child=_after_fork)
