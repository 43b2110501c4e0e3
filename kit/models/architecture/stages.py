"""Stages: the named values of one pass, in the order they are computed.

``embed``, ``blk.{i}.attn.norm|q|k|v|scores|heads|out``, ``blk.{i}.resid_mid``,
``blk.{i}.ffn.norm|experts|gate|up|act|out``, ``blk.{i}.resid``, ``norm``, ``logits``; ``experts`` only where
a block has several feed-forward parts to choose from.
"""

from __future__ import annotations

import difflib
import fnmatch
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from kit.core.tensor import Tensor
from kit.errors import ArgumentError, ShapeError, UnknownStage
from kit.units import shape_text

_BLOCK = (
    "attn.norm",
    "attn.q",
    "attn.k",
    "attn.v",
    "attn.scores",
    "attn.heads",
    "attn.out",
    "resid_mid",
    "ffn.norm",
    "ffn.experts",
    "ffn.gate",
    "ffn.up",
    "ffn.act",
    "ffn.out",
    "resid",
)


@cache
def stage_names(n_layer: int, *, experts: bool = False) -> tuple[str, ...]:
    """Return the names of all stages of a model with ``n_layer`` blocks, of ``experts`` or not, in order."""
    parts = [part for part in _BLOCK if experts or part != "ffn.experts"]
    blocks = (f"blk.{i}.{part}" for i in range(n_layer) for part in parts)
    return ("embed", *blocks, "norm", "logits")


def match_stages(patterns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return those of the stages ``names`` that match any of ``patterns`` (shell globs), in order.

    Raises:
        UnknownStage: a pattern matches nothing; the message suggests near names. ArgumentError: no pattern.
    """
    chosen: set[str] = set()
    if not isinstance(patterns, Iterable):
        raise ArgumentError(f"keep is {patterns!r}; give a pattern of stages, or a list of them (see session.stages)")
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    if not all(isinstance(pattern, str) for pattern in wanted):
        raise ArgumentError(f"{reprlib.repr(wanted)} names stages by what is no text (see session.stages)")
    for pattern in wanted:
        found = fnmatch.filter(names, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, names, 3, 0.5) or list(_BLOCK[-1:])
            raise UnknownStage(f"no stage {pattern!r}; did you mean {', '.join(near)}? (see session.stages)")
        chosen.update(found)
    return [name for name in names if name in chosen]


@dataclass(frozen=True, eq=False)
class Stage:
    """One named value of a built graph.

    ``shape`` (numpy order) is how people see it. Where the last axis counts cells of the cache (``per_cell``), people
    see only the ``cells`` of one sequence, in their order.
    """

    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    per_cell: bool = False
    cells: npt.NDArray[np.int64] | None = None

    def over(self, cells: npt.NDArray[np.int64]) -> Stage:
        """Return the stage as people see it while a sequence has ``cells``."""
        return replace(self, cells=cells)

    def show(self, raw: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Turn the node's values (flat) into what people see; shares memory where it can."""
        value = raw.reshape(self.shape)
        return value if self.cells is None else value[..., self.cells]

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of what `show` returns."""
        return self.shape if self.cells is None else (*self.shape[:-1], len(self.cells))

    def restore(self, value: npt.ArrayLike, what: str) -> npt.NDArray[np.float32]:
        """Turn an edited value back into the node's: checked, padded, float32, contiguous.

        Raises:
            ShapeError: another shape than `seen_shape`. ArgumentError: no numbers. Both name the stage.
        """
        try:
            if value is None:  # numpy would make it NaN
                raise TypeError
            array = np.asarray(value, np.float32)
        except (TypeError, ValueError):
            raise ArgumentError(
                f"{what} of stage {self.name!r} is {reprlib.repr(value)}; "
                f"it must be numbers of shape {shape_text(self.seen_shape)}"
            ) from None
        if array.shape != self.seen_shape:
            raise ShapeError(
                f"{what} of stage {self.name!r} has shape {shape_text(array.shape)}; "
                f"it must be {shape_text(self.seen_shape)}"
            )
        if self.cells is None:
            return np.ascontiguousarray(array)
        padded = np.zeros(self.shape, np.float32)
        padded[..., self.cells] = array
        return padded
