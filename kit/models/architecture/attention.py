"""Attention as one function with three implementations, chosen once at session open.

- ``permuted``: values lie permuted in the cache, so both products read the cache in place. The default:
  scores can be looked at and changed, and it needs no copies.
- ``plain``: values lie as they come and are copied into order in each pass. Used when somebody looks at the
  scores of a session whose cache is laid out for flash.
- ``flash``: ggml's fused operation; no scores exist.

What each asks for: ``flash`` a mask of f16; ``permuted`` values that are not quantized, because the blocks of a
quantized row cannot be taken apart; ``plain`` turns quantized values into f32 first. Any head size will do where
ggml itself has the operations, and ggml is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kit.core import ops
from kit.core.backend import Backend
from kit.core.context import Context
from kit.core.dtypes import dtype_of
from kit.core.native import lib
from kit.core.tensor import Tensor
from kit.errors import ArgumentError
from kit.models.architecture.config import LlamaConfig
from kit.models.cache.cache import PAD, CacheTypes

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


def choose(flash: bool | None, types: CacheTypes, config: LlamaConfig, backend: Backend) -> Choice:
    """Return the implementation for a session opened with ``flash_attn=flash``.

    Raises:
        ArgumentError: it was asked for what no device of ``backend`` has, or declined where nothing else will do.
        DTypeError: a cache type that does not fit the model's heads.
    """
    types.check(config)
    if flash is False and types.quantized_values:
        raise ArgumentError(f"cache_type_v={types.v!r} is read by flash attention only; leave flash_attn out, or f16")
    choice = _wanted(flash, types)
    missing = missing_operation(choice.kind, types, config, backend)
    if missing is not None:
        raise ArgumentError(
            f"{choice.kind} attention over a cache of {types} needs {missing} for {config.head_dim} dims a head, "
            f"which no device of {', '.join(backend.devices)} has; choose another cache_type or flash_attn"
        )
    return choice


def _wanted(flash: bool | None, types: CacheTypes) -> Choice:
    if flash:
        return Choice("flash", "asked for; scores switch a pass to plain")
    if types.quantized_values:
        return Choice("flash", f"{types.v} values cannot lie permuted; scores switch a pass to plain")
    if flash is None:
        return Choice("permuted", "the default: scores can be seen in the same pass, values are read without a copy")
    return Choice("permuted", "flash attention was declined")


def missing_operation(kind: Kind, types: CacheTypes, config: LlamaConfig, backend: Backend) -> str | None:
    """Return the ggml operation that ``kind`` needs and no device of ``backend`` has, or None."""
    dim = config.head_dim
    heads = {(config.layer(i).n_head, config.layer(i).n_head_kv) for i in range(config.n_layer)}
    for n_head, kv in heads:
        with Context(backend, name="attention probe", slots=32) as context:
            shape = (kv, dim, PAD) if kind == "permuted" else (PAD, kv * dim)
            keys, values = context.tensor((PAD, kv * dim), types.k), context.tensor(shape, types.v)
            q, mask = context.tensor((1, n_head, dim)), context.tensor((1, PAD), mask_dtype(kind))
            graph = context.graph(attend(kind, q, keys, values, mask, PAD, kv).heads)
            for index, node in enumerate(graph.nodes()):
                raw = lib.ggml_graph_node(graph.handle, index)
                if not any(lib.ggml_backend_supports_op(handle, raw) for handle in backend.handles):
                    return node.op
    return None


def mask_dtype(kind: Kind) -> str:
    """Return the element type of the mask ``kind`` takes."""
    return "f16" if kind == "flash" else "f32"


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
    v = values[..., :n_kv] if kind == "permuted" else _ordered(values[:n_kv], n_head_kv)  # (kv_heads, head_dim, n_kv)
    products = ops.mul_mat(k, q)  # (heads, tokens, n_kv)
    scores = ops.soft_max_ext(products, mask, scale)
    mixed = ops.mul_mat(v, scores)  # (heads, tokens, head_dim)
    return Attended(ops.cont(ops.permute(mixed, (1, 0, 2))), scores)


def _ordered(values: Tensor, n_head_kv: int) -> Tensor:
    """Return ``values`` (n_kv, kv_heads * head_dim) copied to (kv_heads, head_dim, n_kv)."""
    if dtype_of(values.dtype).quantized:
        values = ops.cast(values, "f32")
    n_kv, width = values.shape
    return ops.cont(ops.permute(values.reshape(n_kv, n_head_kv, width // n_head_kv), (1, 2, 0)))
