"""A session: one conversation with a model; its cache, its passes, its sampler's tokens."""

from __future__ import annotations

import contextlib
import operator
import reprlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.compute import turn
from kit.core.context import Context
from kit.core.interrupts import uninterrupted
from kit.core.scope import scope
from kit.core.watch import Watch
from kit.errors import ArgumentError, ClosedError, OutOfMemory
from kit.models.attention import Choice, choose
from kit.models.cache import KVCache
from kit.models.passes import Batch, PassBuilder, PassKey
from kit.models.patches import Patch, resolve, watch
from kit.models.run import LensEntry, Run
from kit.models.sampler import Sampler
from kit.models.stages import match_stages, stage_names
from kit.models.tokenizer import Tokenizer
from kit.models.walk import Level, Walk, refuse_reentry
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.models.model import Model

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Token:
    """One generated token: its text (never half a character), and the log-probability the model gave it."""

    id: int
    text: str
    logprob: float


class Session:
    """Runs a model over one growing sequence; made by `kit.Model.session`.

    The whole cache, the inputs and the compute buffer of the largest pass are allocated here.

    Raises:
        OutOfMemory: something of it does not fit; nothing is left behind.
    """

    def __init__(self, model: Model, n_ctx: int, n_batch: int, flash_attn: bool | None) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self.n_batch = min(n_batch, n_ctx)
        self.attention: Choice = choose(flash_attn)
        self.last: Run | None = None
        self._tokens: list[int] = []
        self._unseen: list[int] = []
        self._walk: Walk | None = None
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
        model = self.model
        kv_nbytes = 4 * model.config.n_layer * model.config.n_embd_kv * self.n_ctx
        if kv_nbytes > 1 << 60:
            raise OutOfMemory(f"a cache of n_ctx={self.n_ctx} needs {bytes_text(kv_nbytes)}", nbytes=kv_nbytes)
        context = Context(model.backend, name="kv cache", slots=2 * model.config.n_layer)
        self._parts.callback(context.close)
        place = context.for_device(model.backend.devices[-1], purpose="kv cache")
        self.cache = KVCache(place, model.config, self.n_ctx, self.attention.permuted_cache)
        self._passes = PassBuilder(model.backend, model.config, model.prepared, self.cache, self.n_batch, "session")
        self._parts.callback(self._passes.close)
        self._reserve()

    def _reserve(self) -> None:
        """Grow the compute buffer to the worst case now, so that no later pass has to."""
        for n_tokens in (self.n_batch, 1):
            key = PassKey(n_tokens, self.cache.n_cells, n_tokens, self.attention.kind)
            built = self._passes.build(key)
            try:
                self.model.backend.reserve(built.graph)
            finally:
                built.close()

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
        """Tokens in the cache."""
        return self.cache.n_used

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of all stages, in order."""
        return stage_names(self.model.config.n_layer)

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
        ids = self._ids(prompt)
        if logits not in ("all", "last"):
            raise ArgumentError(f"logits is {logits!r}; give 'all' or 'last'")
        kept = match_stages([keep] if isinstance(keep, str) else keep, self.model.config.n_layer)
        patches = resolve(patch or {}, self.model.config.n_layer)
        with self.working(), scope("prefill"):
            self._end_walk()
            self._catch_up(len(ids))
            started = time.perf_counter_ns()
            if kept or patches:
                rows, values = self._observed(ids, kept, patches, logits)
            else:
                rows, values = self._plain(ids, logits), {}
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
        ids = self._ids(prompt)
        with self.working(), scope("prefill"):
            self._end_walk()
            self._catch_up(len(ids))
            self.model.prepared.fill_for(len(ids))  # here an interrupt may come
            with uninterrupted:
                built = self._passes.build(self._key(len(ids), len(ids), looked_at=True), apart=True)
                try:
                    self._walk = Walk(self, built, self._batch(ids, len(ids)), level)
                except BaseException:
                    built.close()
                    raise
        return self._walk

    def generate(
        self, prompt: Prompt = "", *, max_tokens: int = 128, sampler: Sampler | None = None, stop: Sequence[str] = ()
    ) -> Iterator[Token]:
        """Yield tokens after ``prompt`` until an end-of-generation token, a ``stop`` string, or ``max_tokens``.

        Raises:
            CacheFull: no room left. KeyboardInterrupt: stopped; what was yielded stays in the session.
        """
        from kit.models.generation import generate

        return generate(self, prompt, max_tokens, sampler or Sampler(), stop)

    def reset(self) -> None:
        """Forget every token; memory and built passes stay."""
        self._require_open()
        refuse_reentry(self.busy, "reset() it")
        self._end_walk()
        self.cache.clear()
        self._tokens.clear()
        self._unseen.clear()
        self.last = None

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
            self.cache.room_for(len(ids))
            rows = self._plain(ids, "last") if ids else self._last_again()
            self._seen(ids)
        row: npt.NDArray[np.float32] = rows[-1]
        return row

    def _last_again(self) -> npt.NDArray[np.float32]:
        if not self._tokens:
            raise ArgumentError("there is nothing to continue: the session was reset; give a prompt")
        self.cache.n_used -= 1
        try:
            return self._plain(self._tokens[-1:], "last")
        finally:
            self.cache.n_used += 1

    def promise(self, token: int) -> None:
        """Note a token that was given out and is not in the cache yet; the next pass starts with it."""
        self._unseen.append(token)

    def walked(self, batch: Batch, logits: npt.NDArray[np.float32], again: bool = False) -> None:
        """Take over the result of a completed walk."""
        if not again:
            self._seen([int(token) for token in batch.tokens])
        self._record([int(token) for token in batch.tokens], np.array(logits), {}, 0)

    def _catch_up(self, n_tokens: int) -> None:
        """Run the token given out last, so that the next pass is over its own ``n_tokens`` alone."""
        self.cache.room_for(len(self._unseen) + n_tokens)
        if self._unseen:
            unseen = list(self._unseen)
            self._plain(unseen, "last")
            self._seen(unseen)

    def _plain(self, ids: list[int], logits: str) -> npt.NDArray[np.float32]:
        """Run ``ids`` in batches; later batches see earlier ones, and only success moves the session on."""
        rows = []
        before = self.cache.n_used
        try:
            for start in range(0, len(ids), self.n_batch):
                part = ids[start : start + self.n_batch]
                last = start + self.n_batch >= len(ids)
                n_out = len(part) if logits == "all" else 1
                built = self._passes.get(self._key(len(part), n_out))
                built.fill(self._batch(part, n_out), self.cache)
                with turn():  # until the logits are read, nobody else may use the compute buffer
                    self.model.backend.compute(built.graph)
                    if logits == "all" or last:
                        rows.append(transfer.read(built.logits))
                self.cache.n_used += len(part)
        finally:
            self.cache.n_used = before
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _observed(
        self, ids: list[int], kept: list[str], patches: dict[str, Patch], logits: str
    ) -> tuple[npt.NDArray[np.float32], dict[str, npt.NDArray[np.float32]]]:
        """Run ``ids`` as one pass, copying and changing stages on the way."""
        wanted = {*kept, *patches}
        scores = any(name.endswith(".scores") for name in wanted)
        n_out = len(ids) if logits == "all" else 1
        built = self._passes.get(self._key(len(ids), n_out, looked_at=scores, scores=scores))
        built.fill(self._batch(ids, n_out), self.cache)
        flat = {name: np.empty(built.stages[name].shape, np.float32) for name in kept}
        watched = [watch(built.stages[name], flat.get(name), patches.get(name)) for name in sorted(wanted)]
        with turn():
            Watch(watched).compute(built.graph)
            rows = transfer.read(built.logits)
        values = {name: np.ascontiguousarray(built.stages[name].show(value)) for name, value in flat.items()}
        return rows, values

    def _key(self, n_tokens: int, n_out: int, looked_at: bool = False, scores: bool = False) -> PassKey:
        kind = "plain" if scores and self.attention.kind == "flash" else self.attention.kind
        n_seen = self.cache.n_used + n_tokens if looked_at else 0
        return PassKey(n_tokens, self.cache.attended(n_tokens), n_out, kind, n_seen)

    def _batch(self, ids: list[int], n_out: int) -> Batch:
        rows = np.arange(len(ids) - n_out, len(ids), dtype=np.int32)
        return Batch(np.asarray(ids, np.int32), self.cache.n_used, rows)

    def _ids(self, prompt: Prompt) -> list[int]:
        self._require_open()
        if isinstance(prompt, str):
            at_start = not self._tokens and not self._unseen
            ids = self.tokenizer.encode(prompt, add_special=at_start)
        else:
            ids = _whole_numbers(prompt)
        if not ids:
            raise ArgumentError("the prompt has no tokens; give some text or token ids")
        n_vocab = self.model.config.n_vocab
        bad = next((token for token in ids if not 0 <= token < n_vocab), None)
        if bad is not None:
            raise ArgumentError(f"token {bad} is not in the vocabulary of {n_vocab}")
        return ids

    def _seen(self, ids: list[int]) -> None:
        self.cache.n_used += len(ids)
        self._tokens += ids
        self._unseen.clear()

    def _record(self, ids: Sequence[int], rows: Any, values: dict[str, Any], time_ns: int) -> Run:
        pieces = self.model.pieces(ids)
        self.last = Run(tuple(ids), rows, values, time_ns, pieces, _lens_of(self.model))
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
            f"cache {bytes_text(self.cache.nbytes)}{walk})"
        )


def _whole_numbers(prompt: Sequence[int]) -> list[int]:
    if not isinstance(prompt, (bytes, bytearray)):
        with contextlib.suppress(TypeError):
            return [operator.index(token) for token in prompt]
    raise ArgumentError(f"the prompt is {reprlib.repr(prompt)}; give text, or token ids as whole numbers")


def _lens_of(model: Model) -> Callable[[npt.NDArray[np.float32], int], list[list[LensEntry]]]:
    """The model's lens without the model: a record of a run keeps no weights alive."""
    method = weakref.WeakMethod(model.lens)

    def look(residual: npt.NDArray[np.float32], k: int) -> list[list[LensEntry]]:
        lens = method()
        if lens is None:
            raise ClosedError("the model of this run is gone; load it and run again")
        return lens(residual, k)

    return look
