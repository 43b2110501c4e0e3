"""A session: one conversation with a model; its cache, its passes, its sampler's tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from kit.checks import whole
from kit.core.interrupts import uninterrupted
from kit.core.scope import scope
from kit.errors import ArgumentError
from kit.models.architecture.lens import weak_lens
from kit.models.architecture.stages import match_stages, stage_names
from kit.models.cache import room
from kit.models.cache.branches import Branches
from kit.models.cache.cells import Batch
from kit.models.session.patches import Patch, resolve
from kit.models.session.prompts import Prompt as Prompt
from kit.models.session.run import Run
from kit.models.session.sampler import Sampler
from kit.models.session.timeline import Timeline
from kit.models.session.walk import Level, Walk, refuse_reentry
from kit.models.text.streaming import Token
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.models.chat.templates import ChatTemplate
    from kit.models.model import Model
    from kit.models.session.generation import Draws


class Session(Timeline):
    """Runs a model over one growing sequence; made by `kit.Model.session`.

    The whole cache, the inputs and the compute buffer of the largest pass are allocated at once.

    Raises:
        OutOfMemory: something of it does not fit; nothing is left behind.
    """

    last: Run | None = None

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
        kept = match_stages(keep, self.stages)
        patches = resolve({} if patch is None else patch, self.stages)
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
            self.model.prepared.fill_for(len(ids))  # here an interrupt may come
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
        from kit.models.session.generation import generate

        return generate(self, prompt, max_tokens, Sampler() if sampler is None else sampler, stop, logprobs)

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
        from kit.models.chat.chat import chat

        sampler = Sampler() if sampler is None else sampler
        return chat(self, messages, max_tokens, sampler, stop, template, logprobs, more)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write tokens and cache to a file, for `restore`; return its size in bytes.

        A link is followed; what is there and no regular file (a device, a pipe) is left alone.

        Raises:
            StateError: the cache holds what is no finite number, and `restore` would refuse it.
            StateFileError (an OSError): it cannot be written; a file that was there before stays as it was.
        """
        from kit.models.cache.saved_state import save

        return save(self, path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from what `save` wrote; what the session held before is forgotten.

        Raises:
            StateError: no such file of this model, or no file (StateNotFound); the session is as before.
            CacheFull: it holds more than n_ctx.
        """
        from kit.models.cache.saved_state import restore

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

    def close(self) -> None:
        """Free passes, inputs and cache; the model stays."""
        with uninterrupted:
            if not self.closed:
                refuse_reentry(self.busy, "close() it")
                self._end_walk()
                self._finalizer()

    def shift(self, n_keep: int | None = None, n_discard: int | None = None) -> int:
        """Drop ``n_discard`` tokens behind the first ``n_keep`` and move the later ones up; return how many were.

        Defaults: the session's ``n_keep``, and half of what lies behind it. The keys that stay are turned to
        their new positions, which equals computing them there; what they say still comes from the whole text.
        First tokens that left a sliding window long ago cannot be kept where it would reach them again; they are
        dropped as well.

        Raises:
            ArgumentError: fewer tokens than that are there.
        """
        keep = whole("n_keep", self.options.n_keep if n_keep is None else n_keep, 0)
        if n_discard is not None:
            n_discard = whole("n_discard", n_discard, 0)
        with self.working(), scope("shift"):
            self._end_walk()
            discard = max(len(self._tokens) - keep, 0) // 2 if n_discard is None else n_discard
            return room.shift(self, keep, discard)

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
        from kit.models.cache.branches import generate_batch

        return generate_batch(self, prompts, max_tokens, sampler, stop)

    def walked(self, batch: Batch, logits: npt.NDArray[np.float32], again: bool = False) -> None:
        """Take over the result of a completed walk."""
        if not again:
            with uninterrupted:
                self.cache.cells.enter(batch)
                self._seen([int(token) for token in batch.tokens])
        self._record([int(token) for token in batch.tokens], np.array(logits), {}, 0)

    def _record(self, ids: Sequence[int], rows: Any, values: dict[str, Any], time_ns: int) -> Run:
        pieces = self.model.pieces(ids)
        self.last = Run(tuple(ids), rows, values, time_ns, pieces, weak_lens(self.model))
        return self.last

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
