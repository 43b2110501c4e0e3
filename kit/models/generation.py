"""Generating text: sample, give out, go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kit.core.scope import scope
from kit.errors import ArgumentError
from kit.models.sampler import Sampler

if TYPE_CHECKING:
    from kit.models.branches import Branch
    from kit.models.session import Prompt, Session, Token


def generate(
    session: Session | Branch, prompt: Prompt, max_tokens: int, sampler: Sampler, stop: Sequence[str]
) -> Iterator[Token]:
    """See `Session.generate`; arguments are checked here, at the call, not at the first token."""
    if max_tokens < 0:
        raise ArgumentError(f"max_tokens is {max_tokens}; give 0 or more")
    ids = session.ids(prompt) if len(prompt) else []
    if not ids and not session.tokens:
        raise ArgumentError("there is nothing to continue; give a prompt")
    marks = [stop] if isinstance(stop, str) else list(stop)
    if not all(marks):
        raise ArgumentError("a stop string is empty; give text, or leave it out")
    session.check_room(len(ids))
    return _tokens(session, ids, max_tokens, sampler, marks)


def _tokens(
    session: Session | Branch, ids: list[int], max_tokens: int, sampler: Sampler, stop: list[str]
) -> Iterator[Token]:
    from kit.models.session import Token

    decoder = session.tokenizer.stream(skip_special=True)
    tail = ""
    reach = 256 + max(map(len, stop), default=0)
    for n in range(max_tokens):
        with scope("prefill" if len(ids) > 1 else f"token {n}"):
            logits = session.next_logits(ids)
        token = sampler.sample(logits)
        if token in session.tokenizer.eog_ids:
            break
        session.promise(token)
        text = decoder.push(token)
        tail = (tail + text)[-reach:]
        yield Token(token, text, _logprob(logits, token))
        ids = []
        if any(mark in tail for mark in stop):
            break
    rest = decoder.flush()
    if rest and session.tokens:
        yield Token(session.tokens[-1], rest, 0.0)


def _logprob(logits: npt.NDArray[np.float32], token: int) -> float:
    shifted = logits - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
