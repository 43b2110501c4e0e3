"""The weights as passes read them: joined, repacked, or as float16 copies, in memory that goes with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kit.core import copies
from kit.core.backend import Backend
from kit.core.compute import turn
from kit.core.context import Context
from kit.core.dtypes import dtype_of
from kit.core.native import lib
from kit.core.repack import repack_type
from kit.core.tensor import Tensor
from kit.errors import GgmlAbort
from kit.models.weights.preparation import Part, Preparation, Prepare, plan_preparation
from kit.models.weights.weights import Weights
from kit.progress import byte_bar
from kit.units import bytes_text

#: Passes over fewer tokens read the weights as decoding does: there the smaller form is as fast.
PREFILL_TOKENS = 64


class Prepared:
    """What was made of a model's weights; ``close()`` frees it, the weights of the file stay.

    ``plan`` says for each matrix what was done, why, and the bytes it took beside the file. The copies for passes
    over many tokens get their memory at once and their values before the first such pass.

    Raises:
        OutOfMemory: no room; nothing is left behind.
    """

    def __init__(self, weights: Weights, backend: Backend, wanted: Prepare, *, progress: bool = True) -> None:
        self.plan: Preparation = plan_preparation(weights, wanted, weights.mapped)
        made = [part for part in (*self.plan.parts, *self.plan.copies) if part.way != "file"]
        self.context = Context(backend, name=f"prepared weights of {weights.path.name}", slots=len(made) + 1)
        try:
            tensors = [self._declare(part, weights) for part in made]
            self.context.allocate()
            for buffer in self.context.buffers:
                lib.ggml_backend_buffer_set_usage(buffer.handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
            pairs = list(zip(made, tensors, strict=True))
            self._weights, self._progress = weights, progress
            self._fill([pair for pair in pairs if pair[0].way not in _COPIES])
            self._copies = [pair for pair in pairs if pair[0].way in _COPIES]
        except BaseException:
            self.close()
            raise
        self._few, self._many = _tables(weights, made, tensors)

    def _declare(self, part: Part, weights: Weights) -> Tensor:
        sources = [weights[name] for name in part.sources]
        context = self.context
        if part.way in ("repacked", "split", "split copy"):
            context = context.for_buffer_type(repack_type(dtype_of(part.dtype), part.shape))
        tensor = context.tensor(part.shape, part.dtype, part.name)
        if part.way == "in place":
            home = sources[0].core.homes[sources[0].address]
            self.context.place(tensor, home, copies.address_of(sources[0]) - home.base)
        return tensor

    def _fill(self, made: list[tuple[Part, Tensor]]) -> None:
        total = sum(part.nbytes for part, _ in made)
        shown = self._progress and total >= 1 << 28
        with byte_bar("prepare weights", total, shown=shown, leave=False) as bar:
            for part, tensor in made:
                _WAYS[part.way](tensor, [self._weights[name] for name in part.sources])
                tensor.core.ready.add(tensor.address)
                bar.update(part.nbytes)

    def explained(self, error: GgmlAbort) -> GgmlAbort:
        """See `Weights.explained`."""
        return self._weights.explained(error)

    def fill_for(self, n_tokens: int) -> None:
        """Give the copies their values if a pass over ``n_tokens`` reads them and they have none yet."""
        if self._copies and n_tokens >= PREFILL_TOKENS:
            with turn():
                self._fill([pair for pair in self._copies if pair[1].address not in pair[1].core.ready])
                self._copies = []

    def weights_for(self, n_tokens: int, n_out: int) -> Mapping[str, Tensor]:
        """Return the weights a pass over ``n_tokens`` reads, by name; ``n_out`` of them go through the output."""
        if n_tokens < PREFILL_TOKENS:
            return self._few
        if n_out >= PREFILL_TOKENS:
            return self._many
        names = [name for name in ("output.weight", "output.offsets") if name in self._many]
        return {name: t for name, t in self._many.items() if name not in names} | {
            name: self._few[name] for name in names if name in self._few
        }

    @property
    def nbytes(self) -> int:
        """Bytes beside the file."""
        return self.plan.nbytes

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """What was done by kind of matrix: name and count, type, way, bytes beside the file, reason."""
        parts = [part for part in (*self.plan.parts, *self.plan.copies) if not part.name.endswith(".bias")]
        keys = [(part.role, part.dtype, part.way, part.reason) for part in parts]
        spent: Counter[Any] = Counter()
        for key, part in zip(keys, parts, strict=True):
            spent[key] += part.nbytes
        return [
            (f"{role} ({count})" if count > 1 else role, dtype, way, bytes_text(spent[role, dtype, way, why]), why)
            for (role, dtype, way, why), count in Counter(keys).items()
        ]

    def close(self) -> None:
        """Free what was made."""
        self.context.close()

    def __repr__(self) -> str:
        head = f"Prepared({bytes_text(self.nbytes)} beside the file, budget {bytes_text(self.plan.budget)})"
        widths = [max(len(row[i]) for row in self.rows) for i in range(5)] if self.rows else []
        lines = ("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in self.rows)
        return "\n".join([head, *lines])


_COPIES = ("float16 copy", "split copy", "offsets copy")


def _nothing(target: Tensor, sources: list[Tensor]) -> None:
    return None


_WAYS = {
    "in place": _nothing,
    "joined": copies.join,
    "repacked": copies.repack,
    "float16 copy": copies.to_f16,
    "split": copies.split_q4_0,
    "split copy": copies.split_q4_0,
    "offsets": copies.split_offsets,
    "offsets copy": copies.split_offsets,
}


def _tables(weights: Weights, made: list[Part], tensors: list[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights by name for passes over few and over many tokens; joined ones replace their sources."""
    few, many = dict(weights), dict(weights)
    for part, tensor in zip(made, tensors, strict=True):
        for table in (many,) if part.way in _COPIES else (few, many):
            if part.name.startswith("blk.") and not part.way.startswith(
                "offsets"
            ):  # the output may be the embedding's matrix
                for source in part.sources:
                    table.pop(source, None)
            table[part.name] = tensor
    return few, many
