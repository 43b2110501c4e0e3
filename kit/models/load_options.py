"""How a model is loaded: where its weights go, who reads them, what is made of them; all checked."""

from __future__ import annotations

from dataclasses import dataclass

from kit.checks import flag, whole
from kit.core.backend import MAX_THREADS, Backend
from kit.errors import ArgumentError
from kit.models.weights.preparation import Prepare


@dataclass(frozen=True)
class LoadOptions:
    """What `kit.load` was asked for; it says what each means.

    Raises:
        ArgumentError: a number or a choice that is none, or threads for a backend that has its own; names it.
    """

    backend: Backend | None = None
    use_mmap: bool = True
    progress: bool = True
    n_threads: int | None = None
    sliding_window: bool = True
    readers: int | None = None
    n_threads_batch: int | None = None
    prepare: Prepare | str | None = "auto"

    def __post_init__(self) -> None:
        if self.backend is not None and not isinstance(self.backend, Backend):
            raise ArgumentError(f"backend is {self.backend!r:.80}; give a kit.Backend, or leave it out")
        for name in ("use_mmap", "progress", "sliding_window"):
            flag(name, getattr(self, name))
        for name in ("n_threads", "n_threads_batch"):
            if getattr(self, name) is None:
                continue
            whole(name, getattr(self, name), 1, MAX_THREADS)
            if self.backend is not None:
                raise ArgumentError(f"{name} goes to the backend that is given: kit.Backend({name}=...)")
        Prepare.of(self.prepare)

    def own_backend(self) -> Backend | None:
        """Return a new backend for the model, or None where one was given."""
        if self.backend is not None:
            return None
        return Backend(n_threads=self.n_threads, n_threads_batch=self.n_threads_batch)
