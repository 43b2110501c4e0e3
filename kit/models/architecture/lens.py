"""The logit lens: what the model would say if a residual were the last one.

The residual goes through the model's own final norm and output matrix (nostalgebraist, "interpreting GPT:
the logit lens", 2020).
"""

from __future__ import annotations

import reprlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from kit.core import ops, transfer
from kit.core.apart import ApartGraph
from kit.core.backend import Backend
from kit.core.compute import turn
from kit.core.context import Context
from kit.errors import ArgumentError, ClosedError, ShapeError
from kit.models.architecture.config import LlamaConfig
from kit.models.architecture.llama import output_of
from kit.models.session.run import LensEntry
from kit.models.weights.weights import Weights
from kit.units import shape_text

if TYPE_CHECKING:
    from kit.models.model import Model

ROWS = 16


class NamesTokens(Protocol):
    """What the lens asks of a tokenizer."""

    def token(self, token: int) -> str:
        """Return the printable text of one token."""
        ...


class Lens:
    """A small graph with memory of its own, so that it may be used while a pass stands still."""

    def __init__(self, backend: Backend, config: LlamaConfig, weights: Weights) -> None:
        self._context = Context(backend, name="logit lens", slots=16)
        self._x = self._context.input((ROWS, config.n_embd), "f32", "lens.x")
        normed = ops.mul(ops.rms_norm(self._x, config.eps), weights["output_norm.weight"])
        self._logits = output_of(weights, normed)
        self._width = config.n_embd
        self._x.set(np.zeros((ROWS, config.n_embd), np.float32))
        self._graph = self._context.graph(self._logits)
        self._apart = ApartGraph(self._graph, "logit lens")

    def logits(self, residual: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return (rows, n_vocab) logits of ``residual`` (rows, n_embd).

        Raises:
            ShapeError: rows of another width. ArgumentError: no numbers.
        """
        try:
            rows = np.atleast_2d(np.asarray(residual, np.float32))
        except (TypeError, ValueError):
            raise ArgumentError(
                f"the residual is {reprlib.repr(residual)}; give numbers of shape (tokens, {self._width})"
            ) from None
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise ShapeError(f"the lens takes residuals (tokens, {self._width}), not {shape_text(np.shape(residual))}")
        parts = []
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            padded = np.zeros((ROWS, self._width), np.float32)
            padded[: len(part)] = part
            with turn():  # threads share the one graph
                transfer.write(self._x, padded)
                self._apart.compute()
                parts.append(transfer.read(self._logits)[: len(part)])
        return np.concatenate(parts)

    def close(self) -> None:
        """Free the graph and its memory."""
        self._apart.close()
        self._context.close()


def weak_lens(model: Model) -> Callable[[npt.NDArray[np.float32], int], list[list[LensEntry]]]:
    """Return the model's lens without the model: a record of a run keeps no weights alive."""
    method = weakref.WeakMethod(model.lens)

    def look(residual: npt.NDArray[np.float32], k: int) -> list[list[LensEntry]]:
        lens = method()
        if lens is None:
            raise ClosedError("the model of this run is gone; load it and run again")
        return lens(residual, k)

    return look


def top_entries(logits: npt.NDArray[np.float32], k: int, tokenizer: NamesTokens) -> list[LensEntry]:
    """Return the ``k`` most likely tokens of one row of logits, with their share of the softmax."""
    k = max(1, min(k, logits.size))
    largest = np.argpartition(logits, -k)[-k:]
    order = largest[np.argsort(-logits[largest], kind="stable")]
    weights = np.exp(logits - logits.max())
    total = float(weights.sum())
    return [LensEntry(int(i), tokenizer.token(int(i)), float(logits[i]), float(weights[i]) / total) for i in order]
