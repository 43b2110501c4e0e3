"""The KV cache: what attention remembers of earlier tokens, one pair of tensors a layer.

Keys are (cells, kv_heads * head_dim), a row per token. Values lie the same way for flash attention and for
plain; for permuted attention they are (kv_heads, head_dim, cells), so that attention reads them without a
copy. Both are written by `set_rows`: the permuted values as rows of one element.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kit.core import ops
from kit.core.context import Context
from kit.core.tensor import Tensor
from kit.errors import CacheFull
from kit.models.config import LlamaConfig

PAD = 256  # llama.cpp's padding of the attended cells; the sums come out the same with the same padding


class KVCache:
    """Keys and values of ``n_ctx`` tokens in float16; ``close()`` frees them.

    Raises:
        OutOfMemory: no room for them.
    """

    def __init__(self, context: Context, config: LlamaConfig, n_ctx: int, permuted: bool) -> None:
        self.n_ctx = n_ctx
        self.n_cells = -(-n_ctx // PAD) * PAD
        self.permuted = permuted
        self.n_used = 0
        self.context = context
        self._config = config
        kv, dim = config.n_head_kv, config.head_dim
        value_shape = (kv, dim, self.n_cells) if permuted else (self.n_cells, kv * dim)
        self.k = [context.tensor((self.n_cells, kv * dim), "f16", f"cache.k.{i}") for i in range(config.n_layer)]
        self.v = [context.tensor(value_shape, "f16", f"cache.v.{i}") for i in range(config.n_layer)]
        self._flat_v = [v.reshape((v.size, 1)) for v in self.v] if permuted else []  # here: made once, not per pass
        context.allocate()
        for buffer in context.buffers:
            buffer.clear()  # padding is read under a mask, and a NaN there would get through
        for tensor in (*self.k, *self.v):
            tensor.core.ready.add(tensor.address)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(buffer.nbytes for buffer in self.context.buffers)

    def room_for(self, n_tokens: int) -> None:
        """Raise CacheFull unless ``n_tokens`` more fit."""
        free = self.n_ctx - self.n_used
        if n_tokens > free:
            raise CacheFull(
                f"{n_tokens} tokens do not fit: the cache holds n_ctx={self.n_ctx}, {self.n_used} are used, "
                f"{free} free; reset() it, or open a session with a larger n_ctx"
            )

    def attended(self, n_tokens: int) -> int:
        """Cells a pass over ``n_tokens`` more tokens attends to, padded."""
        return min(-(-(self.n_used + n_tokens) // PAD) * PAD, self.n_cells)

    def write(
        self, layer: int, k: Tensor, v: Tensor, cells: Tensor, value_cells: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the cache's tensors after ``k``, ``v`` (tokens, kv_heads * head_dim) are written at ``cells``."""
        keys = ops.set_rows(self.k[layer], k, cells)
        if value_cells is None:
            return keys, ops.set_rows(self.v[layer], v, cells)
        written = ops.set_rows(self._flat_v[layer], v.reshape((v.size, 1)), value_cells)
        return keys, written.reshape(self.v[layer].shape)

    def value_cells(self, first: int, n_tokens: int) -> npt.NDArray[np.int64]:
        """Index of every element of ``n_tokens`` permuted values: cell ``first + t`` of each head dim."""
        columns = np.arange(self._config.n_embd_kv, dtype=np.int64) * self.n_cells
        return (np.arange(first, first + n_tokens, dtype=np.int64)[:, None] + columns[None, :]).reshape(-1)

    def clear(self) -> None:
        """Forget all tokens; the memory stays."""
        self.n_used = 0
