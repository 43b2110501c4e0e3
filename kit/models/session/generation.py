"""Generating text: sample, give out, go on."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from kit.checks import whole
from kit.core.scope import scope
from kit.errors import ArgumentError, CacheFull
from kit.models.session.prompts import is_empty
from kit.models.text.streaming import Alternative, Holder, StopFinder, Token

if TYPE_CHECKING:
    from kit.models.cache.branches import Branch
    from kit.models.session.prompts import Prompt
    from kit.models.session.session import Session

_MOST_ALTERNATIVES = 1000


class Draws(Protocol):
    """What `generate` needs of a sampler.

    A sampler with an attribute ``memory`` (tokens to look back at, -1: all) is called as ``sample(logits, recent)``.
    """

    def sample(self, logits: npt.NDArray[np.float32]) -> int:
        """One token id for logits (n_vocab,)."""


def generate(
    session: Session | Branch,
    prompt: Prompt,
    max_tokens: int,
    sampler: Draws,
    stop: str | Sequence[str],
    logprobs: int = 0,
) -> Iterator[Token]:
    """See `Session.generate`; arguments are checked here, at the call, not at the first token."""
    ids = [] if is_empty(prompt) else session.ids(prompt)
    if not ids and not session.tokens:
        raise ArgumentError("there is nothing to continue; give a prompt")
    session.check_room(len(ids))
    return stream(session, lambda: ids, max_tokens, sampler, stop, logprobs)


def stream(
    session: Session | Branch,
    first_ids: Callable[[], list[int]],
    max_tokens: int,
    sampler: Draws,
    stop: str | Sequence[str],
    logprobs: int,
) -> Iterator[Token]:
    """Check what was asked for; return the tokens. ``first_ids`` is called when the first is asked for."""
    whole("max_tokens", max_tokens, 0)
    whole("logprobs", logprobs, 0, _MOST_ALTERNATIVES)
    if not callable(getattr(sampler, "sample", None)):
        raise ArgumentError(f"sampler is {sampler!r:.80}; give a kit.Sampler, or something with its method sample")
    if not isinstance(stop, Iterable):
        raise ArgumentError(f"stop is {stop!r:.80}; give text, or a list of texts")
    marks = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(mark, str) and mark for mark in marks):
        raise ArgumentError("a stop string is empty or no text; give text, or leave it out")
    return _held_back(session, _sampled(session, first_ids, int(max_tokens), sampler, int(logprobs)), marks)


def _sampled(
    session: Session | Branch, first_ids: Callable[[], list[int]], max_tokens: int, sampler: Draws, logprobs: int
) -> Iterator[Token]:
    """Tokens without text, each promised to the session, until one ends the generation."""
    ends = session.tokenizer.eog_ids
    ids = first_ids() if max_tokens else []
    for n in range(max_tokens):
        with scope("prefill" if len(ids) > 1 else f"token {n}"):
            logits = session.next_logits(ids)
        token = _draw(sampler, logits, session)
        if token in ends:
            return
        described = _described(session, token, logits, logprobs)
        session.promise(token)
        ids = []
        yield described


def _held_back(session: Session | Branch, tokens: Iterator[Token], stop: list[str]) -> Iterator[Token]:
    """The tokens with their text, each as soon as its text is certain; the last before the first stop string."""
    decoder = session.tokenizer.stream(skip_special=True)
    finder, holder = StopFinder(stop), Holder()
    n_named = session.tokenizer.n_vocab  # a file may have rows of logits beyond its vocabulary
    try:
        for token in tokens:
            text = decoder.push(token.id) if token.id < n_named else ""
            holder.add(Token(token.id, text, token.logprob, token.alternatives))
            certain = finder.push(text)
            if finder.found is not None:
                yield from holder.rest(certain)
                return
            yield from holder.certain(certain, keep_last=decoder.pending)
    except CacheFull:  # the tokens that were made are whole
        yield from holder.rest(finder.push(decoder.flush()) + finder.flush())
        raise
    yield from holder.rest(finder.push(decoder.flush()) + finder.flush())


def _draw(sampler: Any, logits: npt.NDArray[np.float32], session: Session | Branch) -> int:
    """Return what the sampler says, checked before the session takes note of it."""
    memory = getattr(sampler, "memory", 0)
    recent = session.tokens if memory else ()
    drawn = sampler.sample(logits, recent if memory < 0 else recent[-memory:]) if memory else sampler.sample(logits)
    try:
        token = operator.index(drawn)
    except TypeError:
        token = -1
    if not 0 <= token < len(logits):
        raise ArgumentError(
            f"sample() of {type(sampler).__name__} gave {reprlib.repr(drawn)}; expected a token id, a whole number "
            f"from 0 to {len(logits) - 1}"
        )
    return token


def _described(session: Session | Branch, token: int, logits: npt.NDArray[np.float32], n: int) -> Token:
    top = float(logits.max())
    log_sum = top + math.log(float(np.exp(logits - top).sum(dtype=np.float64)))
    alternatives: tuple[Alternative, ...] = ()
    if n:
        n = min(n, len(logits))
        ids = np.argpartition(-logits, n - 1)[:n]
        ids = ids[np.lexsort((ids, -logits[ids]))]
        alternatives = tuple(
            Alternative(i, "".join(session.model.pieces([i])), float(logits[i]) - log_sum) for i in ids.tolist()
        )
    return Token(token, "", float(logits[token]) - log_sum, alternatives)
