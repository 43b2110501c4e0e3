"""Attention as one function with three implementations, chosen once at session open.

- ``permuted``: values lie permuted in the cache, so both products read the cache in place. The default:
  scores can be looked at and changed, and it needs no copies.
- ``plain``: values lie as they come and are copied into order in each pass. Used when somebody looks at the
  scores of a session whose cache is laid out for flash.
- ``flash``: ggml's fused operation; no scores exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kit.core import ops
from kit.core.tensor import Tensor

Kind = Literal["permuted", "plain", "flash"]


@dataclass(frozen=True)
class Choice:
    """The implementation a session uses, and why."""

    kind: Kind
    reason: str

    @property
    def permuted_cache(self) -> bool:
        """Whether values lie permuted in the cache."""
        return self.kind == "permuted"

    def __str__(self) -> str:
        return f"{self.kind} attention ({self.reason})"


def choose(flash: bool | None) -> Choice:
    """Return the implementation for a session opened with ``flash_attn=flash``."""
    if flash:
        return Choice("flash", "asked for; scores switch a pass to plain")
    if flash is None:
        return Choice("permuted", "the default: scores can be seen in the same pass, values are read without a copy")
    return Choice("permuted", "flash attention was declined")


@dataclass(frozen=True)
class Attended:
    """What attention gives: ``heads`` (tokens, heads, head_dim), and the ``scores`` it used, if any exist."""

    heads: Tensor
    scores: Tensor | None


def attend(kind: Kind, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, n_kv: int, n_head_kv: int) -> Attended:
    """Attention of ``q`` (tokens, heads, head_dim) over the first ``n_kv`` cells of a layer's cache.

    ``keys`` is (cells, kv_heads * head_dim); ``values`` too, or (kv_heads, head_dim, cells) for ``permuted``.
    ``mask`` is (tokens, n_kv), added to the scaled scores: f16 for flash, f32 otherwise.
    """
    head_dim = q.shape[-1]
    scale = head_dim**-0.5
    k = ops.permute(keys[:n_kv].reshape(n_kv, n_head_kv, head_dim), (1, 0, 2))  # (kv_heads, n_kv, head_dim)
    q = ops.permute(q, (1, 0, 2))  # (heads, tokens, head_dim)
    if kind == "flash":
        v = ops.permute(values[:n_kv].reshape(n_kv, n_head_kv, head_dim), (1, 0, 2))
        return Attended(ops.flash_attn_ext(q, k, v, mask, scale=scale), None)
    if kind == "permuted":
        v = values[..., :n_kv]  # (kv_heads, head_dim, n_kv)
    else:
        v = ops.cont(ops.permute(values[:n_kv].reshape(n_kv, n_head_kv, head_dim), (1, 2, 0)))
    products = ops.mul_mat(k, q)  # (heads, tokens, n_kv)
    scores = ops.soft_max_ext(products, mask, scale)
    mixed = ops.mul_mat(v, scores)  # (heads, tokens, head_dim)
    return Attended(ops.cont(ops.permute(mixed, (1, 0, 2))), scores)
