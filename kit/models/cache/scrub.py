"""Clearing freed cells that may hold what is no finite number.

Attention over permuted values reads the cells it may not see under a mask of -inf, and NaN - inf is NaN: such a
value would reach every later pass. Only patched and edited passes, and those whose logits are not finite, leave
such cells, see `Cells.stain`; plain passes never come here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.compute import turn
from kit.core.context import Context
from kit.core.graph import Graph
from kit.core.tensor import Tensor
from kit.models.session.passes import PassBuilder


def scrub(passes: PassBuilder, n_pass: int) -> None:
    """Write zeros over the free cells that are stained, at most ``n_pass`` of them a pass."""
    cells = passes.cache.cells.stained_and_free()
    for start in range(0, len(cells), n_pass):
        part = cells[start : start + n_pass]
        _clear(passes, part)
        passes.cache.cells.stained[part] = False


def _clear(passes: PassBuilder, cells: npt.NDArray[np.int64]) -> None:
    """Write zeros over keys and values in ``cells``, all layers."""
    n = len(cells)
    widths = {keys.shape[1] for keys in passes.cache.k}
    wanted: dict[str, tuple[tuple[int, ...], str]] = {f"zeros.{width}": ((n, width), "f32") for width in widths}
    context = Context(passes.backend, name=f"scrub of {n} cells", slots=1024)
    try:
        inputs = passes.place(context, wanted | {"cells": ((n,), "i64")})
        graph = Graph(passes.backend, _cleared(passes, inputs), keep_outputs=False)
        with turn():
            for width in widths:
                transfer.write(inputs[f"zeros.{width}"], np.float32(0))
            transfer.write(inputs["cells"], cells)
            passes.backend.compute(graph)
    finally:
        context.close()


def _cleared(passes: PassBuilder, inputs: dict[str, Tensor]) -> list[Tensor]:
    written: list[Tensor] = []
    for layer, keys in enumerate(passes.cache.k):
        zeros = inputs[f"zeros.{keys.shape[1]}"]
        written += passes.cache.write(layer, zeros, zeros, inputs["cells"])
    return written
