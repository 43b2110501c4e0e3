"""The KV cache: what attention remembers of earlier tokens, one pair of tensors a layer.

Keys are (cells, kv_heads * head_dim), a row per token. Values lie the same way for flash attention and for
plain; for permuted attention they are (kv_heads, head_dim, cells), so that attention reads them without a
copy. Both are written by `set_rows`: permuted values as rows of one element, in the same cell of every dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.core import ops
from kit.core.context import Context
from kit.core.dtypes import dtype_of
from kit.core.tensor import Tensor
from kit.errors import DTypeError
from kit.models.architecture.config import LlamaConfig
from kit.models.cache.cells import Cells

PAD = 256  # llama.cpp's padding of the attended cells; the sums come out the same with the same padding
CACHE_TYPES = ("f16", "bf16", "f32", "q8_0", "q4_0")


@dataclass(frozen=True)
class CacheTypes:
    """Element types of keys and values.

    Raises:
        DTypeError: a type no cache can have; names it.
    """

    k: str = "f16"
    v: str = "f16"

    def __post_init__(self) -> None:
        for side, name in (("k", self.k), ("v", self.v)):
            if name not in CACHE_TYPES:
                raise DTypeError(f"cache_type_{side} is {name!r}; give one of {', '.join(CACHE_TYPES)}")

    def check(self, config: LlamaConfig) -> None:
        """Raise DTypeError where a head is no whole number of blocks."""
        for side, name in (("k", self.k), ("v", self.v)):
            kind = dtype_of(name)
            if config.head_dim % kind.block:
                raise DTypeError(
                    f"cache_type_{side}={name!r} packs {kind.block} elements a block, and the heads of "
                    f"{config.name!r} have {config.head_dim}; use f16, bf16 or f32"
                )

    @property
    def quantized_values(self) -> bool:
        """Whether values lie in blocks, which cannot be permuted."""
        return dtype_of(self.v).quantized

    def token_nbytes(self, config: LlamaConfig) -> int:
        """Bytes of the keys and values of one token, over all layers."""
        width = sum(config.layer(i).n_head_kv for i in range(config.n_layer)) * config.head_dim
        return dtype_of(self.k).nbytes(width) + dtype_of(self.v).nbytes(width)

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"{self.k} keys, {self.v} values"


class KVCache:
    """Keys and values of ``n_ctx`` tokens; which token lies where is told by ``cells``.

    Raises:
        OutOfMemory: no room for them.
    """

    def __init__(
        self, context: Context, config: LlamaConfig, n_ctx: int, permuted: bool, types: CacheTypes | None = None
    ) -> None:
        types = types or CacheTypes()
        self.types = types
        self.n_ctx = n_ctx
        self.n_cells = -(-n_ctx // PAD) * PAD
        self.permuted = permuted
        self.context = context
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        for i in range(config.n_layer):
            kv, dim = config.layer(i).n_head_kv, config.head_dim
            value_shape = (kv, dim, self.n_cells) if permuted else (self.n_cells, kv * dim)
            self.k.append(context.tensor((self.n_cells, kv * dim), types.k, f"cache.k.{i}"))
            self.v.append(context.tensor(value_shape, types.v, f"cache.v.{i}"))
        # each dim of the permuted values as cells of one element; made here once, not in each pass
        self._columns = [v.reshape((v.size // self.n_cells, self.n_cells, 1)) for v in self.v] if permuted else []
        context.allocate()
        for buffer in context.buffers:
            buffer.clear()  # padding is read under a mask, and a NaN there would get through
        for tensor in (*self.k, *self.v):
            tensor.core.ready.add(tensor.address)
        self.cells = Cells(self.n_cells, n_ctx, config.window)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(buffer.nbytes for buffer in self.context.buffers)

    @property
    def n_used(self) -> int:
        """Cells in use."""
        return self.cells.n_used

    def room_for(self, n_tokens: int) -> None:
        """Raise CacheFull unless ``n_tokens`` more fit."""
        self.cells.room_for(n_tokens)

    def padded(self, n_cells: int) -> int:
        """Return ``n_cells`` as attention counts them, padded."""
        return min(-(-max(n_cells, 1) // PAD) * PAD, self.n_cells)

    def write(self, layer: int, k: Tensor, v: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cache's tensors after ``k``, ``v`` (tokens, kv_heads * head_dim) are written at ``cells``."""
        keys = ops.set_rows(self.k[layer], k, cells)
        if not self.permuted:
            return keys, ops.set_rows(self.v[layer], v, cells)
        n_tokens, width = v.shape
        columns = ops.view(v, (width, n_tokens, 1), strides=(v.nb[0], v.nb[1]))
        written = ops.set_rows(self._columns[layer], columns, cells)
        return keys, written.reshape(self.v[layer].shape)

    def clear(self) -> None:
        """Forget all tokens; the memory stays."""
        self.cells.clear()
