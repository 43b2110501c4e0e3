"""A conversation with a session: messages -> token ids -> the answer.

What people write cannot steer the model: the names of special tokens in their text stay text. A guard character
that occurs nowhere else is put before each of them, goes through the template with the text, keeps the tokenizer
from taking the name for the token, and is dropped there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kit.core.interrupts import uninterrupted
from kit.errors import CacheFull
from kit.models.cache.cells import MAIN
from kit.models.chat.templates import ChatTemplate, Message, special_texts
from kit.models.session.generation import Draws, stream
from kit.models.text.streaming import Token

if TYPE_CHECKING:
    from kit.models.session.session import Session
    from kit.models.text.tokenizer import Tokenizer

_UNGUARDED_KEYS = ("role", "type")  # a template compares these; they are not what people write
_PRIVATE_USE = range(0xF0000, 0xFFFFE)


def chat(
    session: Session,
    messages: Iterable[Message],
    max_tokens: int,
    sampler: Draws,
    stop: str | Sequence[str],
    template: ChatTemplate | str | None,
    logprobs: int,
    more: dict[str, Any],
) -> Iterator[Token]:
    """See `Session.chat`; template, tokenizer and room are tried here, at the call."""
    session._require_open()
    if template is None:
        template = session.model.chat_template
    elif isinstance(template, str):
        template = ChatTemplate(template, **special_texts(session.tokenizer))
    ids = chat_ids(session.tokenizer, template, messages, **more)
    if len(ids) > session.n_ctx and session.cache.cells.window is None:
        raise CacheFull(
            f"the conversation has {len(ids)} tokens, the cache holds n_ctx={session.n_ctx}; "
            "leave out its first messages, or open a session with a larger n_ctx"
        )
    return stream(session, lambda: go_back_to(session, ids), max_tokens, sampler, stop, logprobs)


def go_back_to(session: Session, ids: list[int]) -> list[int]:
    """Let a session forget its tokens from the first on that differs from ``ids``; return what is yet to be run."""
    with session.working():
        session._end_walk()
        cells, held = session.cache.cells, session._tokens
        most = min(len(held), len(ids) - 1)
        n_kept = next((i for i in range(most) if held[i] != ids[i]), most)
        oldest = int(cells.positions[cells.of(MAIN)].min(initial=n_kept))
        if cells.window is not None and oldest > max(n_kept - cells.window, 0):
            n_kept = 0  # what the next token has to see left the window, and is gone
        with uninterrupted:
            cells.cut(MAIN, n_kept, max(cells.end(), n_kept))
            del held[n_kept:]
            session._unseen.clear()
    return ids[n_kept:]


def chat_ids(tokenizer: Tokenizer, template: ChatTemplate, messages: Iterable[Message], **more: Any) -> list[int]:
    """Ids of a rendered conversation: the template's special tokens parsed, those in the messages not.

    A text that begins with the BOS token gets no second one; none gets an EOS token.
    """
    messages = list(messages)
    guard = _unused_character(template.source, messages, more)
    guarded = _Guard(tokenizer.special_texts, guard)
    text = template.render([guarded.message(message) for message in messages], **guarded.message(more))
    ids = tokenizer.encode(text, add_special=False, guard=guard)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids


class _Guard:
    """Puts the guard character before everything in a text that might be read as a special token."""

    def __init__(self, names: Sequence[str], guard: str) -> None:
        self._guard = guard
        self._whole = re.compile(f"(?={'|'.join(map(re.escape, names))})") if names else None
        self._starts = {name[:n] for name in names for n in range(1, len(name))}
        self._ends = {name[n:] for name in names for n in range(1, len(name))}
        self._longest = max(map(len, names), default=0)

    def message(self, message: Any) -> Any:
        """The message with its texts guarded, at any depth."""
        if isinstance(message, str):
            return self.text(message)
        if isinstance(message, dict):
            return {k: v if k in _UNGUARDED_KEYS else self.message(v) for k, v in message.items()}
        if isinstance(message, (list, tuple)):
            return [self.message(item) for item in message]
        return message

    def text(self, text: str) -> str:
        """The text, guarded: whole names, the beginning of one at its end, the end of one at its beginning."""
        if self._whole is None:
            return text
        text = self._whole.sub(self._guard, text)
        body = text.rstrip()
        reach = range(min(len(body), self._longest), 0, -1)
        at = next((len(body) - n for n in reach if body[-n:] in self._starts), None)
        if at is not None:
            text = text[:at] + self._guard + text[at:]
        lead = len(text) - len(text.lstrip())
        if any(text[lead : lead + n] in self._ends for n in range(1, self._longest)):
            text = text[:lead] + self._guard + text[lead:]
        return text


def _unused_character(*values: Any) -> str:
    """A character of Unicode's private use that is in none of the texts."""
    used: set[str] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            used.update(value)
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
    return next(chr(i) for i in _PRIVATE_USE if chr(i) not in used)
