"""A conversation with a session: messages -> token ids -> the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kit.core.interrupts import uninterrupted
from kit.errors import CacheFull
from kit.models.cache.cells import MAIN
from kit.models.chat.masks import told_apart
from kit.models.chat.templates import ChatTemplate, Message, plain_messages, plain_options, special_texts
from kit.models.session.generation import Draws, stream
from kit.models.text.streaming import Token

if TYPE_CHECKING:
    from kit.models.session.session import Session
    from kit.models.text.tokenizer import Tokenizer


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


def chat_ids(tokenizer: Tokenizer, template: ChatTemplate, messages: Iterable[Message], /, **more: Any) -> list[int]:
    """Ids of a rendered conversation: the template's special tokens parsed, those in the messages not.

    A text that begins with the BOS token gets no second one; none gets an EOS token.
    """
    ids = told_apart(tokenizer, template, plain_messages(messages), plain_options(more))
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids
