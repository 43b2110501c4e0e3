"""Built passes: graphs of a session for one number of tokens and one span of the cache, reused while they fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.core.backend import Backend
from kit.core.buffer import Buffer
from kit.core.context import Context
from kit.core.graph import Graph
from kit.core.native import ffi
from kit.core.scope import keeping
from kit.core.tensor import Tensor
from kit.models.architecture.attention import Kind, mask_dtype
from kit.models.architecture.config import LlamaConfig
from kit.models.architecture.llama import LlamaPass, PassInputs
from kit.models.architecture.stages import Stage
from kit.models.cache.cache import KVCache
from kit.models.cache.cells import Batch, Cells
from kit.models.weights.prepared import PREFILL_TOKENS, Prepared

MAX_BUILT = 8


@dataclass(frozen=True)
class PassKey:
    """What decides the shape of a pass."""

    n_tokens: int
    n_kv: int
    n_out: int
    kind: Kind


class BuiltPass:
    """A graph, its stages, and numpy views straight into the memory of its inputs."""

    def __init__(
        self,
        key: PassKey,
        context: Context,
        stages: Sequence[Stage],
        logits: Tensor,
        inputs: PassInputs,
        weights: Prepared,
    ) -> None:
        self.key = key
        self.context = context
        self.stages = {stage.name: stage for stage in stages}
        self.logits = logits
        self.graph = Graph(context.backend, [stage.tensor for stage in stages], keep_outputs=False)
        self.graph.batch = key.n_tokens >= PREFILL_TOKENS
        self._inputs = inputs
        self._weights = weights
        self._memory: dict[str, npt.NDArray[np.generic]] = {}

    def fill(self, batch: Batch, cells: Cells) -> None:
        """Write the inputs of ``batch``; each token sees its own sequences in ``cells`` and in the batch."""
        self._weights.fill_for(len(batch))
        self._view("tokens")[:] = batch.tokens
        self._view("positions")[:] = batch.positions
        self._view("cells")[:] = batch.cells
        if self._inputs.out_rows is not None:
            self._view("out_rows")[:] = batch.out_rows if len(batch.out_rows) else [len(batch) - 1]
        mask = self._view("mask")
        mask.fill(-np.inf)
        np.copyto(mask, 0, where=cells.visible(batch, self.key.n_kv))

    def seen(self, cells: npt.NDArray[np.int64]) -> dict[str, Stage]:
        """Return the stages by name; scores over ``cells`` alone, in that order."""
        return {name: stage.over(cells) if stage.per_cell else stage for name, stage in self.stages.items()}

    def _view(self, name: str) -> npt.NDArray[np.generic]:
        if name not in self._memory:
            tensor: Tensor = getattr(self._inputs, name)
            dtype = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64}[tensor.dtype]
            memory = ffi.buffer(ffi.cast("char *", tensor.p.data), tensor.nbytes)
            self._memory[name] = np.frombuffer(memory, dtype).reshape(tensor.shape)
        return self._memory[name]

    def close(self) -> None:
        """Free the graph and its metadata."""
        self._memory.clear()
        self.context.close()


class PassBuilder:
    """Builds and keeps the passes of one session; all of them share one buffer for their inputs."""

    def __init__(
        self, backend: Backend, config: LlamaConfig, weights: Prepared, cache: KVCache, n_ubatch: int, owner: str
    ) -> None:
        self.backend = backend
        self.config = config
        self.weights = weights
        self.cache = cache
        self.owner = owner
        self._built: OrderedDict[PassKey, BuiltPass] = OrderedDict()
        nbytes = self._input_nbytes(n_ubatch, cache.n_cells)
        self._inputs = Buffer.allocate(backend.buffer_type(), nbytes, purpose="inputs", owner=owner, name="inputs")

    def get(self, key: PassKey) -> BuiltPass:
        """Return the pass for ``key``, built now or before."""
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        with keeping("built passes"):
            built = self.build(key)
        self._built[key] = built
        while len(self._built) > MAX_BUILT:
            self._built.popitem(last=False)[1].close()
        return built

    def build(self, key: PassKey, apart: bool = False) -> BuiltPass:
        """Build a pass; ``apart`` gives it inputs of its own, so that it survives other passes."""
        context = Context(self.backend, name=f"pass of {key.n_tokens} tokens over {key.n_kv} cells", slots=2048)
        try:
            inputs = self._declare(context, key, apart)
            weights = self.weights.weights_for(key.n_tokens, key.n_out)
            llama = LlamaPass(self.config, weights, self.cache, inputs, key.kind, key.n_kv)
            logits = llama.build()
            return BuiltPass(key, context, llama.stages, logits, inputs, self.weights)
        except BaseException:
            context.close()
            raise

    def _declare(self, context: Context, key: PassKey, apart: bool) -> PassInputs:
        n = key.n_tokens
        wanted: dict[str, tuple[tuple[int, ...], str]] = {
            "tokens": ((n,), "i32"),
            "positions": ((n,), "i32"),
            "mask": ((n, key.n_kv), mask_dtype(key.kind)),
            "cells": ((n,), "i64"),
        }
        if key.n_out != n:
            wanted["out_rows"] = ((key.n_out,), "i32")
        tensors = self.place(context, wanted, apart)
        return PassInputs(**{"out_rows": None, **tensors})  # type: ignore[arg-type]

    def place(
        self, context: Context, wanted: Mapping[str, tuple[tuple[int, ...], str]], apart: bool = False
    ) -> dict[str, Tensor]:
        """Return inputs of ``context`` by name, in the one buffer where they fit, else in one of their own."""
        tensors = {name: context.input(shape, dtype, name) for name, (shape, dtype) in wanted.items()}
        if not apart and sum(_padded(tensor.nbytes) for tensor in tensors.values()) <= self._inputs.nbytes:
            offset = 0
            for tensor in tensors.values():
                context.place(tensor, self._inputs, offset)
                offset += _padded(tensor.nbytes)
        else:
            context.allocate()
        for tensor in tensors.values():
            tensor.core.ready.add(tensor.address)
        return tensors

    def _input_nbytes(self, n: int, n_kv: int) -> int:
        return sum(map(_padded, (n * 4, n * 4, n * n_kv * 4, n * 8, n * 4)))

    def forget(self) -> None:
        """Free every pass; the next of each kind is built anew."""
        for built in self._built.values():
            built.close()
        self._built.clear()

    def close(self) -> None:
        """Free every pass and the inputs' buffer."""
        self.forget()
        self._inputs.close()


def _padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
