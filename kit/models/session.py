"""A session: one conversation with a model; its cache, its passes, its sampler's tokens."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from kit.core.context import Context
from kit.core.interrupts import uninterrupted
from kit.core.scope import scope
from kit.errors import ArgumentError, ClosedError, OutOfMemory
from kit.models import room
from kit.models.attention import Choice, choose
from kit.models.branches import Branch, Branches
from kit.models.cache import KVCache
from kit.models.cells import MAIN, Batch
from kit.models.lens import weak_lens
from kit.models.options import SessionOptions
from kit.models.patches import Patch, resolve
from kit.models.prompts import Prompt as Prompt
from kit.models.prompts import prompt_ids
from kit.models.run import Run
from kit.models.runner import Runner
from kit.models.sampler import Sampler
from kit.models.stages import match_stages, stage_names
from kit.models.streaming import Token
from kit.models.tokenizer import Tokenizer
from kit.models.walk import Level, Walk, refuse_reentry
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.models.generation import Draws
    from kit.models.model import Model
    from kit.models.templates import ChatTemplate


class Session:
    """Runs a model over one growing sequence; made by `kit.Model.session`.

    The whole cache, the inputs and the compute buffer of the largest pass are allocated here.

    Raises:
        OutOfMemory: something of it does not fit; nothing is left behind.
    """

    def __init__(self, model: Model, options: SessionOptions) -> None:
        self.model = model
        self.options = options
        self.n_ctx = int(options.n_ctx)
        self.n_batch = int(min(options.n_batch, options.n_ctx))
        self.attention: Choice = choose(options.flash_attn, options.types, model.config, model.backend)
        self.last: Run | None = None
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
        self.runner = Runner(model.backend, model.config, model.weights, self.cache, self.attention, options.n_pass)
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
        return len(self._tokens)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of all stages, in order."""
        config = self.model.config
        return stage_names(config.n_layer, experts=config.n_expert > 0)

    @property
    def position(self) -> str | None:
        """Name of the stage an unfinished walk stands at."""
        return self._walk.position if self._walk is not None and not self._walk.finished else None

    def run(
        self,
        prompt: Prompt,
        *,
        keep: str | Iterable[str] = (),
        patch: Mapping[str, Patch | npt.ArrayLike] | None = None,
        logits: Literal["all", "last"] = "all",
    ) -> Run:
        """Run ``prompt`` (text or token ids) after what the session has seen; return logits and kept stages.

        Args:
            prompt: text is tokenized as the file asks, with special tokens.
            keep: stage patterns (shell globs) whose values are copied out.
            patch: stage pattern -> a function of the value (it may change it in place and return None, or
                return a new one), or an array to put there.
            logits: a row per token, or only the last.

        Raises:
            UnknownStage: a pattern that matches nothing. CacheFull: no room for the tokens.
            ShapeError: a patch of another shape; names the stage. What a patch function raises, as it is.
            KeyboardInterrupt: stopped; the session is as before the call.
        """
        ids = self.ids(prompt)
        if logits not in ("all", "last"):
            raise ArgumentError(f"logits is {logits!r}; give 'all' or 'last'")
        kept = match_stages([keep] if isinstance(keep, str) else keep, self.stages)
        patches = resolve(patch or {}, self.stages)
        with self.working(), scope("prefill"):
            self._end_walk()
            self._catch_up(len(ids))
            started = time.perf_counter_ns()
            batch = self._batch(ids, logits)
            if kept or patches:
                rows, values = self.runner.observed(batch, kept, patches)
            else:
                rows, values = self.runner.rows(batch), {}
            self._seen(ids)
        return self._record(ids, rows, values, time.perf_counter_ns() - started)

    def steps(self, prompt: Prompt, *, level: Level = "stage") -> Walk:
        """Return an iterator that pauses after each named stage of one pass over ``prompt``.

        Args:
            prompt: as for `run`.
            level: ``"stage"`` for every stage, ``"block"`` for the residual after each block.

        Raises as `run`; stepping gives the logits that `run` gives.
        """
        if level not in ("stage", "block"):
            raise ArgumentError(f"level is {level!r}; give 'stage' or 'block'")
        ids = self.ids(prompt)
        with self.working(), scope("prefill"):
            self._end_walk()
            self._catch_up(len(ids))
            with uninterrupted:
                batch = self._batch(ids, "all")
                built = self.runner.apart(batch)
                try:
                    self._walk = Walk(self, built, batch, level)
                except BaseException:
                    built.close()
                    raise
        return self._walk

    def generate(
        self,
        prompt: Prompt = "",
        *,
        max_tokens: int = 128,
        sampler: Draws | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int = 0,
    ) -> Iterator[Token]:
        """Yield tokens after ``prompt`` until an end-of-generation token, a ``stop`` string, or ``max_tokens``.

        Each comes as soon as its text can no longer be part of a stop string, which is never given out.
        ``logprobs``: how many of the likeliest tokens each carries as ``alternatives``.

        Raises:
            CacheFull: no room left. KeyboardInterrupt: stopped; what was yielded stays in the session.
        """
        from kit.models.generation import generate

        return generate(self, prompt, max_tokens, sampler or Sampler(), stop, logprobs)

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        max_tokens: int = 512,
        sampler: Draws | None = None,
        stop: str | Sequence[str] = (),
        template: ChatTemplate | str | None = None,
        logprobs: int = 0,
        **more: Any,
    ) -> Iterator[Token]:
        """Yield the answer to ``messages``, each a dict of ``role`` and ``content``, as `generate` does.

        What the session holds already of the conversation is not run again; what is no part of it is forgotten.
        Names of special tokens in the messages stay text. ``template``: another than the file's, or the name of
        a built-in form; ``more`` goes to the template.

        Raises:
            TemplateError: the template refuses the messages, or there is none. CacheFull: no room for them.
        """
        from kit.models.chat import chat

        return chat(self, messages, max_tokens, sampler or Sampler(), stop, template, logprobs, more)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write tokens and cache to a file, for `restore`; return its size in bytes.

        Raises:
            OSError: it cannot be written; a file that was there before stays as it was.
        """
        from kit.models.saved_state import save

        return save(self, path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from what `save` wrote; what the session held before is forgotten.

        Raises:
            StateError: no such file of this model; the session is as before. CacheFull: it holds more than n_ctx.
        """
        from kit.models.saved_state import restore

        restore(self, path)

    @classmethod
    def load(cls, model: Model, path: str | os.PathLike[str], **settings: Any) -> Session:
        """Open a session with ``settings``, as `Model.session` takes them, and `restore` it."""
        session = model.session(**settings)
        try:
            session.restore(path)
        except BaseException:
            session.close()
            raise
        return session

    def reset(self) -> None:
        """Forget every token; memory and built passes stay."""
        self._require_open()
        refuse_reentry(self.busy, "reset() it")
        self._end_walk()
        self.forget()
        self.last = None

    def forget(self) -> None:
        """Forget every token, and close the branches."""
        for branches in list(self.branches):
            branches.close()
        self.cache.clear()
        self._tokens.clear()
        self._unseen.clear()

    def close(self) -> None:
        """Free passes, inputs and cache; the model stays."""
        with uninterrupted:
            if not self.closed:
                refuse_reentry(self.busy, "close() it")
                self._end_walk()
                self._finalizer()

    def working(self) -> AbstractContextManager[Any]:
        """Return what holds the session for one piece of work, to be entered; a second one raises BusyError.

        It is the lock itself: an interrupt between a Python ``__enter__`` and the body would keep it for ever.
        """
        self._require_open()
        refuse_reentry(self._lock.locked(), "run it")
        return self._lock

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

    def shift(self, n_keep: int | None = None, n_discard: int | None = None) -> int:
        """Drop ``n_discard`` tokens behind the first ``n_keep`` and move the later ones up; return how many were.

        Defaults: the session's ``n_keep``, and half of what lies behind it. The keys that stay are turned to
        their new positions, which equals computing them there; what they say still comes from the whole text.

        Raises:
            ArgumentError: fewer tokens than that are there.
        """
        keep = int(self.options.n_keep) if n_keep is None else n_keep
        with self.working(), scope("shift"):
            self._end_walk()
            discard = max(len(self._tokens) - keep, 0) // 2 if n_discard is None else n_discard
            room.shift(self, keep, discard)
        return discard

    def check_room(self, n_tokens: int) -> None:
        """Raise CacheFull unless ``n_tokens`` more fit, or will after a shift where the session was opened so."""
        if not room.will_shift(self, n_tokens):
            self.cache.room_for(n_tokens)

    def fork(self, n: int) -> Branches:
        """Return ``n`` branches that go on from what the session has seen, which is stored once for all.

        Raises:
            ArgumentError: more sequences than a cache can tell apart.
        """
        with self.working(), scope("fork"):
            self._end_walk()
            self._catch_up(0)
            self.branches.append(Branches(self, n, self._tokens))
        return self.branches[-1]

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int = 128,
        sampler: Sampler | Sequence[Sampler] | None = None,
        stop: Sequence[str] = (),
    ) -> list[list[Token]]:
        """Return what `generate` makes of each of ``prompts`` after what the session has seen, all run at once.

        The session itself stays as it is. Raises as `generate` and `fork`.
        """
        from kit.models.branches import generate_batch

        return generate_batch(self, prompts, max_tokens, sampler, stop)

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

    def promise(self, token: int) -> None:
        """Note a token that was given out and is not in the cache yet; the next pass starts with it."""
        self._unseen.append(token)

    def walked(self, batch: Batch, logits: npt.NDArray[np.float32], again: bool = False) -> None:
        """Take over the result of a completed walk."""
        if not again:
            self.cache.cells.enter(batch)
            self._seen([int(token) for token in batch.tokens])
        self._record([int(token) for token in batch.tokens], np.array(logits), {}, 0)

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

    def ids(self, prompt: Prompt) -> list[int]:
        """Return ``prompt`` as token ids, checked, to go on from what the session has seen."""
        self._require_open()
        return prompt_ids(self.model, prompt, at_start=not self.tokens)

    def _seen(self, ids: list[int]) -> None:
        self._tokens += ids
        self._unseen.clear()

    def _record(self, ids: Sequence[int], rows: Any, values: dict[str, Any], time_ns: int) -> Run:
        pieces = self.model.pieces(ids)
        self.last = Run(tuple(ids), rows, values, time_ns, pieces, weak_lens(self.model))
        return self.last

    def _end_walk(self) -> None:
        if self._walk is not None:
            self._walk.close()
            self._walk = None

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("the session was closed; open another with model.session()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "Session(closed)"
        walk = f", stands at {self.position}" if self.position else ""
        return (
            f"Session({self.model.config.name}: {self.n_past} of {self.n_ctx} tokens, {self.attention}, "
            f"cache {bytes_text(self.cache.nbytes)} of {self.cache.types}{walk})"
        )
