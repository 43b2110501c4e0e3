"""Tokens on their way out: text that may still become a stop string is held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Alternative(NamedTuple):
    """A token that might have come: its printable text, and the log-probability the model gave it."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Token:
    """One generated token.

    text: what it adds to the output, never half a character and nothing of a stop string.
    logprob: the log-probability the model gave it, before any sampler setting.
    alternatives: the likeliest tokens at its place, the likeliest first, where they were asked for.
    """

    id: int
    text: str
    logprob: float
    alternatives: tuple[Alternative, ...] = ()


class StopFinder:
    """Cuts a text that arrives in pieces before the first stop string.

    push() takes a piece and gives the text that is certain by now; after `found` no more is certain.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Take a piece of text; return what can no longer be part of a stop string."""
        text = self._held + piece
        # Of several the one that is complete first counts, of those that begin earliest.
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        n_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        certain = len(text) - n_held
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return what was held back: the end came, and no stop string with it."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` begin ``stop``."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0


class Holder:
    """Keeps tokens back until their text is certain, and gives each the text that is its own."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Token, int]] = []
        self._text = ""

    def add(self, token: Token) -> None:
        """Take a token with all its text."""
        self._waiting.append((token, len(token.text)))

    def certain(self, text: str, keep_last: bool) -> list[Token]:
        """Take text that is certain; return the tokens that are complete by it, but for the last if it is to wait."""
        self._text += text
        ready = []
        while len(self._waiting) > keep_last and self._waiting[0][1] <= len(self._text):
            ready.append(self._next())
        return ready

    def rest(self, text: str = "") -> list[Token]:
        """Take the last text; return all tokens left, the text shared out among them, what is over to the last."""
        self._text += text
        ready = []
        while self._waiting:
            ready.append(self._next(whole=len(self._waiting) == 1))
        return ready

    def _next(self, whole: bool = False) -> Token:
        token, n = self._waiting.pop(0)
        n = len(self._text) if whole else n
        text, self._text = self._text[:n], self._text[n:]
        return Token(token.id, text, token.logprob, token.alternatives)
