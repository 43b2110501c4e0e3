"""How long text filters and methods may take: whether one call may be made, from the sizes of what it is given.

Nothing stops a call once it runs, so those whose time or memory grows faster than their text get short texts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

from kit.models.chat.limits import MAX_ITEMS, LimitError, require_chars

MAX_STRIPPED = 256
MAX_SEARCH = 1 << 28
MAX_WORDS_CHARS = 1 << 20

# Each walks letters or words in Python; wordwrap copies the rest of a long word for each line of it.
_MOST_CHARS = {"float": 1 << 16, "int": 1 << 16, "title": MAX_WORDS_CHARS, "urlencode": MAX_WORDS_CHARS,
               "wordcount": MAX_WORDS_CHARS, "wordwrap": 1 << 16}  # fmt: skip
_LISTS_LETTERS = frozenset(
    ("batch", "groupby", "join", "list", "max", "min", "slice", "sort", "sum", "unique", "dictsort")
)
_LINE = re.compile("\n|\r|\v|\f|[\x1c-\x1e\x85\u2028\u2029]")
_WORD = re.compile(r"\S+")


def check_subject(name: str, subject: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
    """Raise LimitError where a filter would take long over ``subject``."""
    plain = (str, int, float, type(None))
    if name == "sum" and not all(isinstance(value, plain) for value in (*args, *kwargs.values())):
        raise LimitError("it sums up lists, each of which is copied anew")
    if name == "trim":
        _check_stripped(*args, *kwargs.values())
    if name in _MOST_CHARS:
        text = str(subject)
        if len(text) > _MOST_CHARS[name]:
            raise LimitError(f"it gives {name} {len(text)} characters; {_MOST_CHARS[name]} are the most")
    if isinstance(subject, str):
        if name in _LISTS_LETTERS:
            require_items(len(subject))
        elif name == "indent":
            _check_found(_LINE, subject)


def check_method(name: str, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise LimitError where the method of a text would take long or make a long list."""
    texts = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    if name in ("strip", "lstrip", "rstrip"):
        _check_stripped(*texts)
    elif name in ("rfind", "rindex", "rpartition", "rsplit") and texts and len(owner) * len(texts[0]) > MAX_SEARCH:
        raise LimitError(f"it searches {len(owner)} characters backwards for {len(texts[0])}")
    most = next((n for n in (*args[1:], kwargs.get("maxsplit")) if isinstance(n, int) and n >= 0), None)
    if name == "splitlines":
        _check_found(_LINE, owner)
    elif name in ("split", "rsplit") and (most is None or most > MAX_ITEMS):
        if texts:
            require_items(owner.count(texts[0]))
        else:
            _check_found(_WORD, owner)


def require_items(n: int) -> None:
    """Raise LimitError before a list of ``n`` values is made, if that is too long."""
    if n > MAX_ITEMS:
        raise LimitError(f"it makes a list of {n} values; {MAX_ITEMS} are the most")


def check_replaced(text: str, old: str, new: str) -> None:
    """Raise LimitError if ``text`` with ``new`` for each ``old`` would be too long."""
    require_chars(len(text) + text.count(old) * len(new))


def _check_found(pattern: re.Pattern[str], text: str) -> None:
    require_items(sum(1 for _ in itertools.islice(pattern.finditer(text), MAX_ITEMS + 1)))


def _check_stripped(*chars: Any) -> None:
    if any(isinstance(text, str) and len(text) > MAX_STRIPPED for text in chars):
        raise LimitError(f"it takes off any of more than {MAX_STRIPPED} characters")
