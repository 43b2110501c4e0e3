"""How a session is opened: sizes, cache types, what to do when the cache is full; all checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kit.errors import ArgumentError
from kit.models.cache.cache import CacheTypes

OnFull = Literal["raise", "shift"]


@dataclass(frozen=True)
class SessionOptions:
    """What `kit.Model.session` was asked for.

    ``n_ubatch`` is the size of the largest pass, at most ``n_batch``. With ``on_full="shift"`` half of what
    lies behind the first ``n_keep`` tokens is dropped when the cache is full.

    Raises:
        ArgumentError: a size or a choice that is none; names it.
    """

    n_ctx: int
    n_batch: int = 512
    n_ubatch: int | None = None
    flash_attn: bool | None = None
    types: CacheTypes = field(default_factory=CacheTypes)
    on_full: OnFull = "raise"
    n_keep: int = 1

    def __post_init__(self) -> None:
        if not _is_count(self.n_ctx) or not _is_count(self.n_batch):
            raise ArgumentError(
                f"n_ctx is {self.n_ctx!r} and n_batch {self.n_batch!r}; both must be whole numbers from 1"
            )
        if self.n_ubatch is not None and not _is_count(self.n_ubatch):
            raise ArgumentError(f"n_ubatch is {self.n_ubatch!r}; it must be a whole number from 1")
        if self.on_full not in ("raise", "shift"):
            raise ArgumentError(f"on_full is {self.on_full!r}; give 'raise' or 'shift'")
        if not _is_count(self.n_keep, 0) or self.n_keep >= self.n_ctx:
            raise ArgumentError(f"n_keep is {self.n_keep!r}; it must be a whole number below n_ctx={self.n_ctx}")

    @property
    def n_pass(self) -> int:
        """Tokens of the largest pass."""
        return int(min(self.n_ubatch or self.n_batch, self.n_batch, self.n_ctx))


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)
