"""Token texts as people can read them: untrusted, so nothing in them steers a terminal or a page."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.models.text.streaming import Token

_MARKS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


def token_text(text: str, width: int = 24) -> str:
    """Return ``text`` on one line of at most ``width`` columns: spaces as ␣, line ends as ↵, controls escaped."""
    return shorten("".join(_MARKS.get(c) or printable(c) for c in text[: 4 * width]), width)


def alternatives_line(piece: str, token: Token) -> str:
    """Return a line for a generated token: its text and chance, then those of the tokens that might have come."""
    others = "  ".join(f"{token_text(other.text)} {_percent(other.logprob)}" for other in token.alternatives)
    return f"{pad(token_text(piece), 16)} {_percent(token.logprob):>4}   {others}"


def _percent(logprob: float) -> str:
    return f"{100 * math.exp(logprob):.0f}%"


def line_text(text: str) -> str:
    """Return ``text`` with its line ends and tabs, other control characters escaped."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def printable(character: str) -> str:
    """Return the character, or its escape if it is invisible, moves the cursor or turns the writing direction."""
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def columns(text: str) -> int:
    """Return the columns ``text`` takes in a terminal."""
    return sum(_columns(c) for c in text)


def shorten(text: str, width: int) -> str:
    """Return ``text`` cut to ``width`` columns, with … where something was cut."""
    if columns(text) <= width:
        return text
    kept, used = [], 0
    for c in text:
        used += _columns(c)
        if used > width - 1:
            break
        kept.append(c)
    return "".join(kept) + "…"


def pad(text: str, width: int) -> str:
    """Return ``text`` cut or filled with spaces to exactly ``width`` columns."""
    cut = shorten(text, width)
    return cut + " " * (width - columns(cut))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
