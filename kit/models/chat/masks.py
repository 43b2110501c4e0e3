"""What people write cannot become special tokens, whatever a template does with it.

A conversation is rendered twice: as it is, and with signs of Unicode's private use in place of the letters that the
names of special tokens are made of. Where the second, its signs turned back, is the first, each letter of the text
is known for the template's or for the messages', and names made of the template's letters alone are tokens. A
template that looks at letters may write another text for signs; then fewer letters are masked. A text whose special
tokens differ from those of the masked one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from kit.errors import ArgumentError, TemplateError
from kit.models.chat.limits import same_moment

if TYPE_CHECKING:
    from kit.models.chat.templates import ChatTemplate, Message
    from kit.models.text.tokenizer import Tokenizer

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")
_WORD = re.compile(r"[\w-]+")
_LOOKED_UP = re.compile(r"""['"]([\w-]+)['"]|\.\s*(\w+)""")

_Level = Callable[[str], str]


def told_apart(
    tokenizer: Tokenizer, template: ChatTemplate, messages: list[dict[str, Any]], more: dict[str, Any]
) -> list[int]:
    """Ids of a rendered conversation of plain values: the template's special tokens parsed, all else text.

    Raises:
        TemplateError: what the template itself raises, or special tokens that cannot be told from what is written.
    """
    with same_moment():
        text = template.render(messages, **more)
        masks = Masks(tokenizer.special_texts, template.source, (messages, more))
        own: list[int] | None = None  # the special tokens of the first masked rendering
        for level in masks.levels:
            try:
                masked = template.render(masks.messages(messages, level), **masks.options(more, level))
            except TemplateError:
                continue
            found = tokenizer.specials_in(masked)
            own = found if own is None else own
            if found == own and masks.undone(masked) == text:
                return tokenizer.encode(masked, add_special=False, unmask=masks.undone)
        if tokenizer.specials_in(text) == own:
            return tokenizer.encode(text, add_special=False, unmask=str)
    raise TemplateError(
        f"{template.name}: what the messages say decides which special tokens it writes, so those cannot be told from "
        "written text; take the names of special tokens out of the messages, or encode what render() gives yourself"
    )


class Masks:
    """Signs for letters, one for one: lengths, order and equality of texts stay."""

    def __init__(self, names: Sequence[str], source: str, values: object) -> None:
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._looked_up = {word for pair in _LOOKED_UP.findall(source) for word in pair if word}
        texts = [source, *_texts(values)]
        used = set().union(*texts)
        letters = {c for name in names for c in name if not c.isspace() or name.isspace()}
        masked = sorted(c for c in used if letters.intersection(_forms(c)))
        escapes = {escape for text in texts for escape in _ESCAPE.findall(text.lower())}
        self._signs = dict(zip(masked, _free(used, escapes), strict=False))
        if len(self._signs) < len(masked):
            raise ArgumentError("the messages use nearly all of Unicode's private use letters; leave some of them out")
        self._letters = str.maketrans({sign: c for c, sign in self._signs.items()})
        self._escapes = {_escaped(sign): c for c, sign in self._signs.items()}
        self._escaped = re.compile("|".join(map(re.escape, self._escapes)))
        words = {c for name in names if all(map(str.isalnum, name)) for c in name}
        self._marks = {c: s for c, s in self._signs.items() if not c.isalnum() or words.intersection(_forms(c))}

    @property
    def levels(self) -> tuple[_Level, ...]:
        """What is done to a text, the most first: all letters of names, their punctuation, whole names only."""
        everything, marks = str.maketrans(self._signs), str.maketrans(self._marks)
        return (lambda text: text.translate(everything), lambda text: text.translate(marks), self._without_names)

    def messages(self, messages: list[dict[str, Any]], level: _Level) -> list[Message]:
        """Masked messages; a role that is one word is the caller's, templates make names of it."""
        return [
            self._masked(message, level) | ({"role": message["role"]} if self._is_word(message["role"]) else {})
            for message in messages
        ]

    def options(self, options: dict[str, Any], level: _Level) -> dict[str, Any]:
        """Masked tools and documents; words the template looks for, and the texts of BOS and EOS, stay."""
        return {
            key: value if key in ("bos_token", "eos_token") or self._is_known(value) else self._masked(value, level)
            for key, value in options.items()
        }

    def undone(self, text: str) -> str:
        """The text with its letters back, in JSON's escapes too."""
        if self._escapes and "\\u" in text:
            text = self._escaped.sub(lambda found: self._escapes[found[0]], text)
        return text.translate(self._letters)

    def _without_names(self, text: str) -> str:
        if self._names is None:
            return text
        signs = str.maketrans({ord(c): sign for c, sign in self._signs.items()})
        return self._names.sub(lambda name: name[0].translate(signs), text)

    def _masked(self, value: Any, level: _Level) -> Any:
        if isinstance(value, str):
            return level(value)
        if isinstance(value, list):
            return [self._masked(item, level) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            (key if self._is_known(key) else level(key)): (
                item if key == "type" and self._is_known(item) else self._masked(item, level)
            )
            for key, item in value.items()
        }

    def _is_known(self, value: Any) -> bool:
        """Whether it is a word the template itself looks for."""
        return isinstance(value, str) and value in self._looked_up and self._is_word(value)

    def _is_word(self, text: str) -> bool:
        return _WORD.fullmatch(text) is not None and not (self._names and self._names.search(text))


def _forms(letter: str) -> set[str]:
    """The letters that upper(), lower() and the like make of one."""
    return set(letter + letter.lower() + letter.upper() + letter.title() + letter.casefold())


def _texts(value: object) -> Iterator[str]:
    """Every text in a value made of plain values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in chain(value, value.values()):
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _free(used: set[str], escapes: set[str]) -> Iterator[str]:
    """Signs that are in none of the texts, nor are their escapes."""
    for code in chain(*_PRIVATE_USE):
        sign = chr(code)
        if sign not in used and escapes.isdisjoint(_ESCAPE.findall(_escaped(sign))):
            yield sign


def _escaped(sign: str) -> str:
    """JSON's escape for a sign: one or two UTF-16 units."""
    raw = sign.encode("utf-16-be")
    return "".join(f"\\u{raw[i : i + 2].hex()}" for i in range(0, len(raw), 2))
