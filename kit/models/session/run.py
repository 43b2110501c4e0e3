"""The record of a run: tokens, logits, and the stages somebody asked to keep; plain arrays, safe for ever."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.errors import UnknownStage
from kit.units import bytes_text, shape_text


@dataclass(frozen=True)
class LensEntry:
    """One guess of the logit lens."""

    id: int
    text: str
    logit: float
    probability: float


@dataclass(frozen=True, eq=False)
class Run(Mapping[str, npt.NDArray[np.float32]]):
    """What a run gave; ``run["blk.3.resid"]`` is a kept stage.

    ``tokens`` are those of this run, ``logits`` is (rows, n_vocab): a row per token, or only the last.
    """

    tokens: tuple[int, ...]
    logits: npt.NDArray[np.float32]
    stages: dict[str, npt.NDArray[np.float32]]
    time_ns: int
    pieces: tuple[str, ...] = ()
    _lens: Callable[[npt.NDArray[np.float32], int], list[list[LensEntry]]] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle takes along: plain data; the lens needs the model and stays behind."""
        return {**self.__dict__, "_lens": None}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kept stages, in the order of computation."""
        return tuple(self.stages)

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        if name == "logits":
            return self.logits
        if name not in self.stages:
            near = difflib.get_close_matches(name, self.stages, 2)
            hint = f"; did you mean {', '.join(near)}?" if near else "; give it to run(keep=[...])"
            raise UnknownStage(f"stage {name!r} was not kept in this run{hint}")
        return self.stages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.logits.nbytes + sum(value.nbytes for value in self.stages.values())

    def lens(self, k: int = 5) -> list[list[list[LensEntry]]]:
        """Return the logit lens of every kept residual: ``[block][token]`` -> the ``k`` most likely next tokens.

        Raises:
            UnknownStage: no residual was kept. ClosedError: the model was closed.
        """
        if self._lens is None:
            raise UnknownStage("this run has no model to look through; load one and run again")
        kept = [value for name, value in self.stages.items() if name.endswith(".resid")]
        if not kept:
            raise UnknownStage("no residual was kept; run(..., keep=['blk.*.resid'])")
        return [self._lens(value, k) for value in kept]

    def view(self) -> Any:
        """Return a `kit.views.RunView`: the logit lens and attention of what was kept, or the likeliest next tokens."""
        from kit.views import view  # the one look upwards: views know runs, runs only know where they are drawn

        return view(self)

    def text(self) -> str:
        """Return a line per kept stage."""
        lines = [repr(self)]
        lines += [f"  {name:<22} {shape_text(value.shape)}" for name, value in self.stages.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        kept = f", {len(self.stages)} stages kept" if self.stages else ""
        return (
            f"Run({len(self.tokens)} tokens, logits {shape_text(self.logits.shape)}{kept}, "
            f"{bytes_text(self.nbytes)}, {self.time_ns / 1e6:.1f} ms)"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else self.text())
