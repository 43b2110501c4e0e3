"""How a session is opened: sizes, cache types, what to do when the cache is full; all checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kit.checks import flag, is_whole, whole
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
        whole("n_ctx", self.n_ctx)
        whole("n_batch", self.n_batch)
        if self.n_ubatch is not None:
            whole("n_ubatch", self.n_ubatch)
        if self.flash_attn is not None:
            flag("flash_attn", self.flash_attn)
        if self.on_full not in ("raise", "shift"):
            raise ArgumentError(f"on_full is {self.on_full!r}; give 'raise' or 'shift'")
        most = max(self.n_ctx - 1, self.on_full == "raise")  # the default goes with a cache of one token
        if not is_whole(self.n_keep, 0, most):
            raise ArgumentError(f"n_keep is {self.n_keep!r}; it must be a whole number to {most}, n_ctx={self.n_ctx}")

    @property
    def n_pass(self) -> int:
        """Tokens of the largest pass."""
        return int(min(self.n_ubatch or self.n_batch, self.n_batch, self.n_ctx))
