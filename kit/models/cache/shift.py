"""Context shift: moving the keys of a sequence to other positions after some of its tokens were dropped.

Attention in llama-family models knows positions only by the angles its keys were rotated by, and rotations add up:
turning a key by the difference of two positions moves it from one to the other (Su et al., arXiv:2104.09864).
Values have no position. What keys and values say is not computed anew: it still comes from all that was there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kit.core import ops, transfer
from kit.core.compute import turn
from kit.core.context import Context
from kit.core.graph import Graph
from kit.core.interrupts import uninterrupted
from kit.core.tensor import Tensor
from kit.models.cache.cells import MAIN
from kit.models.session.passes import PassBuilder

_DTYPES = {"rows": "i32", "cells": "i64", "by": "i32"}


def shift(passes: PassBuilder, n_pass: int, n_keep: int, n_discard: int) -> None:
    """Drop the main sequence's positions from ``n_keep`` on, ``n_discard`` of them; move the later ones up.

    Needs no memory but what passes of ``n_pass`` tokens have.
    """
    cells = passes.cache.cells
    cells.cut(MAIN, n_keep, n_keep + n_discard)
    later = cells.of(MAIN)
    later = later[cells.positions[later] >= n_keep + n_discard]
    with uninterrupted:  # half of the keys turned would be a cache of nonsense
        for start in range(0, len(later), n_pass):
            _turn(passes, later[start : start + n_pass], -n_discard)
        cells.positions[later] -= np.int32(n_discard)
        cells.ends[MAIN] -= n_discard if len(later) else 0


def _turn(passes: PassBuilder, cells: npt.NDArray[np.int64], by: int) -> None:
    """Turn the keys in ``cells``, all layers, by ``by`` positions."""
    n = len(cells)
    context = Context(passes.backend, name=f"shift of {n} keys", slots=1024)
    try:
        inputs = passes.place(context, {name: ((n,), dtype) for name, dtype in _DTYPES.items()})
        graph = Graph(passes.backend, _turned(passes, inputs), keep_outputs=False)
        with turn():
            transfer.write(inputs["rows"], cells.astype(np.int32))
            transfer.write(inputs["cells"], cells)
            transfer.write(inputs["by"], np.int32(by))
            passes.backend.compute(graph)
    finally:
        context.close()


def _turned(passes: PassBuilder, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return the keys of every layer after they are read as f32, rotated, and written where they were."""
    config, cache = passes.config, passes.cache
    factors = config.rope.factors(passes.weights.weights_for(1, 1), cache.n_ctx)
    written = []
    for keys in cache.k:
        n, width = len(inputs["rows"]), keys.shape[1]
        old = ops.get_rows(keys, inputs["rows"]).reshape((n, width // config.head_dim, config.head_dim))
        new = config.rope.rotate(old, inputs["by"], factors, keep_length=True)
        written.append(ops.set_rows(keys, new.reshape((n, width)), inputs["cells"]))
    return written
