"""Ctrl-C held back to the places where nothing is half made."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class HeldInterrupts:
    """While this is entered, an interrupt waits for the next `check`, which hands it to the handler there was.

    Without it KeyboardInterrupt may come between a native call and the line that notes what the call returned.
    Only Python's main thread is ever interrupted: elsewhere, or where SIGINT has no Python handler, this does nothing.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._noted: tuple[int, FrameType | None] | None = None

    def check(self) -> None:
        """Let an interrupt that came in the meantime take effect here.

        Raises:
            KeyboardInterrupt: by the handler there was before, if that one raises it.
        """
        if self._noted is not None:
            noted, self._noted = self._noted, None
            self._previous(*noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = (number, frame)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            if exc[0] is None:
                self.check()
