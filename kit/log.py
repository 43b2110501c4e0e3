"""ggml's log as records of the standard ``logging`` module, under the logger ``kit.ggml``."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger("kit")
log.addHandler(logging.NullHandler())

_ggml = logging.getLogger("kit.ggml")
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUES = 5


class LineJoiner(threading.local):
    """Joins ggml's fragments into whole lines, thread by thread: ggml ends a line with a newline, not a call."""

    def __init__(self) -> None:
        self._level = logging.INFO
        self._text = ""

    def feed(self, level: int, text: str) -> None:
        """Take one fragment with ggml's level (1 debug, 2 info, 3 warn, 4 error, 5 continues)."""
        if level != _CONTINUES:
            self._level = _LEVELS.get(level, logging.INFO)
        self._text += text
        while "\n" in self._text:
            line, self._text = self._text.split("\n", 1)
            if line.strip():
                _ggml.log(self._level, "%s", line.rstrip(), extra={"ggml_level": level})


joiner = LineJoiner()
