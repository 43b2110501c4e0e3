"""Room in a session's cache: is there any, and shifting to make some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.core.interrupts import uninterrupted
from kit.errors import ArgumentError

if TYPE_CHECKING:
    from kit.models.session.timeline import Timeline


def shift(session: Timeline, n_keep: int, n_discard: int) -> int:
    """Drop ``n_discard`` tokens behind the first ``n_keep``, see `Session.shift`; where it fails, all is forgotten.

    Return how many were dropped. Of the tokens to keep those are dropped too whose cells left a sliding window long
    ago, where what stays would see them.
    """
    n_seen = session.cache.cells.end()
    if n_keep < 0 or n_discard < 0 or n_keep + n_discard > n_seen:
        raise ArgumentError(f"cannot drop {n_discard} tokens behind the first {n_keep}: the cache holds {n_seen}")
    if session.branches:
        raise ArgumentError("branches of this session see its tokens; close() them, then shift()")
    n_gone = session.cache.cells.n_gone_after(n_keep, n_discard)
    with uninterrupted:
        try:
            session.runner.shift(n_keep, n_discard)
            if n_gone:
                session.runner.shift(0, n_gone)
        except BaseException:
            session.forget()  # positions and keys may not agree
            raise
        session.drop_tokens(n_keep, n_discard)
        session.drop_tokens(0, n_gone)
    return n_discard + n_gone


def will_shift(session: Timeline, n_tokens: int) -> bool:
    """Whether ``n_tokens`` more fit by shifting, and the session was opened to do so."""
    n_keep = int(session.options.n_keep)
    fits = n_tokens <= session.n_ctx - n_keep and session.cache.cells.end() > n_keep
    return session.options.on_full == "shift" and fits and not session.branches


def make_room(session: Timeline, n_tokens: int) -> None:
    """Shift until ``n_tokens`` more fit, where the session was opened so; raise CacheFull where they do not."""
    n_keep = int(session.options.n_keep)
    while not session.cache.cells.fit(n_tokens) and will_shift(session, n_tokens):
        shift(session, n_keep, -(-(session.cache.cells.end() - n_keep) // 2))
    session.cache.room_for(n_tokens)
