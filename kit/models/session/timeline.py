"""The tokens of a session: which lie in the cache, which were promised, and how the next ones get there."""

from __future__ import annotations

import contextlib
import threading
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kit.core.context import Context
from kit.core.interrupts import uninterrupted
from kit.errors import ArgumentError, ClosedError, OutOfMemory
from kit.models.architecture.attention import Choice, choose
from kit.models.cache import room
from kit.models.cache.cache import KVCache
from kit.models.cache.cells import MAIN, Batch
from kit.models.session.options import SessionOptions
from kit.models.session.prompts import Prompt, prompt_ids
from kit.models.session.runner import Runner
from kit.models.session.walk import Walk, refuse_reentry
from kit.models.text.tokenizer import Tokenizer
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.models.cache.branches import Branch, Branches
    from kit.models.model import Model


class Timeline:
    """What a session is made of below its public face: cache, passes, tokens, and the lock that keeps them together.

    Cache, inputs and the compute buffer of the largest pass are allocated here.

    Raises:
        OutOfMemory: something of it does not fit; nothing is left behind.
    """

    def __init__(self, model: Model, options: SessionOptions) -> None:
        self.model = model
        self.options = options
        self.n_ctx = int(options.n_ctx)
        self.n_batch = int(min(options.n_batch, options.n_ctx))
        self.attention: Choice = choose(options.flash_attn, options.types, model.config, model.backend)
        self._tokens: list[int] = []
        self._unseen: list[int] = []
        self._walk: Walk | None = None
        self.branches: list[Branches] = []
        self._lock = threading.Lock()
        self._parts = contextlib.ExitStack()
        with uninterrupted:
            try:
                self._open()
            except BaseException:
                self._parts.close()
                raise
            self._finalizer = weakref.finalize(self, contextlib.ExitStack.close, self._parts)

    def _open(self) -> None:
        model, options = self.model, self.options
        nbytes = options.types.token_nbytes(model.config) * self.n_ctx
        if nbytes > 1 << 60:
            raise OutOfMemory(f"a cache of n_ctx={self.n_ctx} needs {bytes_text(nbytes)}", nbytes=nbytes)
        context = Context(model.backend, name="kv cache", slots=3 * model.config.n_layer)
        self._parts.callback(context.close)
        place = context.for_device(model.backend.devices[-1], purpose="kv cache")
        self.cache = KVCache(place, model.config, self.n_ctx, self.attention.permuted_cache, options.types)
        self.runner = Runner(model.backend, model.config, model.prepared, self.cache, self.attention, options.n_pass)
        self._parts.callback(self.runner.close)
        self.runner.reserve()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    @property
    def busy(self) -> bool:
        """Whether the session is in the middle of a pass."""
        return self._lock.locked()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens seen so far, generated ones included."""
        return (*self._tokens, *self._unseen)

    @property
    def n_past(self) -> int:
        """Tokens of the session in the cache."""
        return len(self.cache.cells.of(MAIN))

    def working(self) -> AbstractContextManager[Any]:
        """Return what holds the session for one piece of work, to be entered; a second one raises BusyError.

        It is the lock itself: an interrupt between a Python ``__enter__`` and the body would keep it for ever.
        """
        self._require_open()
        refuse_reentry(self._lock.locked(), "run it")
        return self._lock

    def ids(self, prompt: Prompt) -> list[int]:
        """Return ``prompt`` as token ids, checked, to go on from what the session has seen."""
        self._require_open()
        return prompt_ids(self.model, prompt, at_start=not self.tokens)

    def next_logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """Run what is not in the cache yet, then ``ids``; return the logits after the last, (n_vocab,).

        Where there is nothing new, the last token is run once more, in the cell it has.
        """
        with self.working():
            self._end_walk()
            ids = [*self._unseen, *ids]
            room.make_room(self, len(ids))
            rows = self.runner.rows(self._batch(ids, "last")) if ids else self._last_again()
            self._seen(ids)
        row: npt.NDArray[np.float32] = rows[-1]
        return row

    def _last_again(self) -> npt.NDArray[np.float32]:
        if not self._tokens:
            raise ArgumentError("there is nothing to continue: the session was reset; give a prompt")
        return self.runner.rows(self.cache.cells.last(self._tokens[-1]), again=True)

    def promise(self, token: int) -> None:
        """Note a token that was given out and is not in the cache yet; the next pass starts with it."""
        self._unseen.append(token)

    def check_room(self, n_tokens: int) -> None:
        """Raise CacheFull unless ``n_tokens`` more fit, or will after a shift where the session was opened so."""
        if not room.will_shift(self, n_tokens):
            self.cache.room_for(n_tokens)

    def run_batch(self, batch: Batch, *, again: bool = False) -> npt.NDArray[np.float32]:
        """Run a batch of `Branches`; return its logits (out rows, n_vocab)."""
        with self.working():
            self._end_walk()
            return self.runner.rows(batch, again=again)

    def become(self, branch: Branch) -> None:
        """Go on as ``branch``; what only the session saw is forgotten."""
        with self.working():
            self._end_walk()
            self.cache.cells.forget(MAIN)
            self.cache.cells.share(branch.sequence, MAIN)
            self._tokens[:], self._unseen[:] = branch.seen, branch.unseen

    def drop_tokens(self, first: int, n: int) -> None:
        """Take ``n`` tokens from the list, for the cache has dropped them."""
        del self._tokens[first : first + n]

    def forget(self) -> None:
        """Forget every token, and close the branches."""
        for branches in list(self.branches):
            branches.close()
        self.cache.clear()
        self._tokens.clear()
        self._unseen.clear()

    def _catch_up(self, n_tokens: int) -> None:
        """Run the token given out last, so that the next pass is over its own ``n_tokens`` alone."""
        room.make_room(self, len(self._unseen) + n_tokens)
        if self._unseen:
            unseen = list(self._unseen)
            self.runner.rows(self._batch(unseen, "last"))
            self._seen(unseen)

    def _batch(self, ids: list[int], logits: str) -> Batch:
        rows = np.arange(0 if logits == "all" else len(ids) - 1, len(ids), dtype=np.int32)
        return self.cache.cells.batch(ids, MAIN, rows)

    def _seen(self, ids: list[int]) -> None:
        with uninterrupted:
            self._tokens += ids
            self._unseen.clear()

    def _end_walk(self) -> None:
        self.cache.cells.agree(MAIN, len(self._tokens))
        if self._walk is not None:
            self._walk.close()
            self._walk = None

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("the session was closed; open another with model.session()")
