"""A model: configuration, weights, tokenizer, and the backend they live on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import numpy.typing as npt

from kit.checks import whole
from kit.core.backend import Backend
from kit.core.compute import turn
from kit.core.gguf import GGUFFile
from kit.core.interrupts import uninterrupted
from kit.core.scope import keeping, scope
from kit.errors import ArgumentError, ClosedError, GGUFError, UnsupportedModel
from kit.models.architecture.config import LlamaConfig
from kit.models.architecture.layout import check_tensors
from kit.models.architecture.lens import Lens, top_entries
from kit.models.cache.cache import CacheTypes
from kit.models.files.store import find_model
from kit.models.load_options import LoadOptions
from kit.models.session.options import OnFull, SessionOptions
from kit.models.session.run import LensEntry
from kit.models.session.session import Session
from kit.models.session.walk import refuse_reentry
from kit.models.text.tokenizer import Tokenizer
from kit.models.weights.preparation import Prepare
from kit.models.weights.prepared import Prepared
from kit.models.weights.weights import Weights
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.models.chat.templates import ChatTemplate

DEFAULT_CTX = 2048


class Model:
    """A loaded model. ``close()`` closes its sessions, then its weights, then the backend it made.

    Raises:
        GGUFError, UnsupportedModel: the file is not a model kit can run; the message names what is wrong.
        OutOfMemory: no room for the weights.
    """

    def __init__(
        self,
        file: GGUFFile,
        options: LoadOptions,
    ) -> None:
        self.path = file.path
        self.config = LlamaConfig.from_gguf(file, sliding_window=options.sliding_window)
        check_tensors(file, self.config)
        self._owned = options.own_backend()
        self.backend: Backend = options.backend or cast(Backend, self._owned)
        self._file = file
        self._lens: Lens | None = None
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._closed = False
        try:
            use_mmap, progress = options.use_mmap, options.progress
            self.weights = Weights(file, self.backend, use_mmap=use_mmap, progress=progress, readers=options.readers)
            try:
                self.prepared = Prepared(self.weights, self.backend, Prepare.of(options.prepare), progress=progress)
            except BaseException:
                self.weights.close()
                raise
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the file describes, built when first needed."""
        return Tokenizer.from_gguf(self._file)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template, or the built-in form its special tokens belong to; TemplateError without either."""
        from kit.models.chat.templates import ChatTemplate

        return ChatTemplate.from_metadata(self._file.metadata, self.tokenizer, str(self.path))

    def session(
        self,
        n_ctx: int | None = None,
        *,
        n_batch: int = 512,
        n_ubatch: int | None = None,
        flash_attn: bool | None = None,
        cache_type: str = "f16",
        cache_type_k: str | None = None,
        cache_type_v: str | None = None,
        on_full: OnFull = "raise",
        n_keep: int = 1,
    ) -> Session:
        """Open a session with room for ``n_ctx`` tokens (default: 2048, or what the model was trained for).

        Args:
            n_ctx: tokens the cache holds.
            n_batch: tokens of the largest pass; longer runs go in pieces.
            n_ubatch: the same by llama.cpp's name for it, where it should be smaller than ``n_batch``.
            flash_attn: True for ggml's fused attention, which has no scores to look at.
            cache_type: f16, bf16, f32, q8_0 or q4_0.
            cache_type_k: another type for the keys.
            cache_type_v: another type for the values; quantized ones are read by flash attention only.
            on_full: what a full cache does: ``"raise"`` CacheFull, or ``"shift"``, see `Session.shift`.
            n_keep: tokens at the start that an automatic shift keeps.

        Raises:
            OutOfMemory: cache or compute buffer do not fit; nothing is left behind.
            DTypeError: a cache type that does not fit the heads. ArgumentError: a size or choice that is none.
        """
        self._require_open()
        size = n_ctx if n_ctx is not None else min(DEFAULT_CTX, self.config.n_ctx_train)
        types = CacheTypes(cache_type_k or cache_type, cache_type_v or cache_type)
        options = SessionOptions(size, n_batch, n_ubatch, flash_attn, types, on_full, n_keep)
        with scope("session open"):
            session = Session(self, options)
        self._sessions.add(session)
        return session

    def lens(self, residual: npt.NDArray[np.float32], k: int = 5) -> list[list[LensEntry]]:
        """Return the ``k`` likeliest next tokens for each row of ``residual`` (rows, n_embd)."""
        k = whole("k", k)
        logits = self.lens_logits(residual)
        return [top_entries(row, k, self.tokenizer) for row in logits]

    def lens_logits(self, residual: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the logits (rows, n_vocab) of ``residual`` through the model's own norm and output."""
        self._require_open()
        with turn(), uninterrupted, keeping("lens"):
            if self._lens is None:
                self._lens = Lens(self.backend, self.config, self.weights)
        return self._lens.logits(residual)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the printable text of each token; empty where the file has no vocabulary."""
        try:
            return tuple(self.tokenizer.token(token) for token in ids)
        except (ArgumentError, GGUFError, UnsupportedModel):
            return ()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close sessions, weights, and the backend if the model made it; a second call does nothing.

        Raises:
            BusyError: a session is in the middle of a pass; nothing was closed.
        """
        with turn(), uninterrupted:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        sessions = list(self._sessions)
        refuse_reentry(any(session.busy for session in sessions), "close() the model")
        for session in sessions:
            session.close()
        self._closed = True
        if self._lens is not None:
            self._lens.close()
            self._lens = None
        self.prepared.close()
        self.weights.close()
        if self._owned is not None:
            self._owned.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the model {self.config.name!r} was closed; kit.load() it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"Model({self.config.name!r}, closed)"
        c = self.config
        return (
            f"Model({c.name!r}: {c.architecture}, {c.n_layer} blocks, n_embd {c.n_embd}, "
            f"{c.n_head}/{c.n_head_kv} heads, vocabulary {c.n_vocab}, weights {bytes_text(self.weights.nbytes)})"
        )


def load(
    name_or_path: str | os.PathLike[str],
    *,
    backend: Backend | None = None,
    use_mmap: bool = True,
    progress: bool = True,
    n_threads: int | None = None,
    sliding_window: bool = True,
    readers: int | None = None,
    n_threads_batch: int | None = None,
    prepare: Prepare | str | None = "auto",
) -> Model:
    """Load a model from a path (any part of a split file), or by the name of one kit knows or finds on this machine.

    Args:
        name_or_path: see `kit.find_model`.
        backend: what it runs on; default: one of its own, closed with the model.
        use_mmap: map the file instead of reading it.
        progress: show a bar while reading.
        n_threads: CPU threads of the model's own backend.
        sliding_window: False lets attention see all tokens where the file asks for a window, as llama.cpp does.
        readers: how many read the file at once where it is read, 1 to 64 (default 4); see ``model.weights.trace``.
        n_threads_batch: the same for passes over many tokens; default: as many.
        prepare: what to make of the weights: "auto", "none" for the file as it is, or a `kit.Prepare`;
            ``model.prepared`` shows what was done and why.

    Raises:
        ArgumentError: an option that is none, or threads for a ``backend`` that has its own.
        ModelNotFound, GGUFError, UnsupportedModel, OutOfMemory: each says what is wrong, with what, and what to do.
    """
    options = LoadOptions(backend, use_mmap, progress, n_threads, sliding_window, readers, n_threads_batch, prepare)
    with scope("load"):
        return Model(GGUFFile(find_model(name_or_path)), options)
