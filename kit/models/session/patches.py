"""Patches: changes to named values while a pass runs."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.tensor import Tensor
from kit.core.watch import Watched
from kit.errors import ArgumentError
from kit.models.architecture.stages import Stage, match_stages

#: Takes a stage's value; changes it in place and returns None, or returns a new one.
Patch = Callable[[npt.NDArray[np.float32]], "npt.ArrayLike | None"]


def resolve(patch: Mapping[str, Patch | npt.ArrayLike], names: Sequence[str]) -> dict[str, Patch]:
    """Return one function per stage of ``names``; a later pattern wins over an earlier one.

    Raises:
        UnknownStage: a pattern matches nothing. ArgumentError: no patch.
    """
    if not isinstance(patch, Mapping):
        raise ArgumentError(f"patch is {reprlib.repr(patch)}; give a dict of stage -> function or array")
    found: dict[str, Patch] = {}
    for pattern, change in patch.items():
        if change is None:
            raise ArgumentError(f"the patch of {pattern!r} is None; give a function or an array, or leave it out")
        function = change if callable(change) else _constant(change)
        found.update(dict.fromkeys(match_stages([pattern], names), function))
    return found


def watch(stage: Stage, copy_to: npt.NDArray[np.float32] | None, patch: Patch | None) -> Watched:
    """Return how ``stage`` is looked at: its bytes go to ``copy_to`` after ``patch`` changed them.

    Raises, while the pass runs:
        ShapeError: the patch gave another shape; names the stage.
    """
    if patch is None:
        return Watched(stage.tensor, copy_to=copy_to)
    function = patch

    def change(tensor: Tensor) -> None:
        raw = _apply(stage, tensor, function)
        if copy_to is not None:
            copy_to[...] = raw.reshape(copy_to.shape)

    return Watched(stage.tensor, call=change)


def _constant(array: npt.ArrayLike) -> Patch:
    return lambda value: array


def _apply(stage: Stage, tensor: Tensor, function: Patch) -> npt.NDArray[np.float32]:
    """Read the node, let ``function`` change it, write it back; return the node's values as written."""
    value = np.array(stage.show(transfer.read(tensor)))
    returned = function(value)
    raw = stage.restore(value if returned is None else returned, "the patch")
    transfer.write(tensor, raw.reshape(tensor.shape))
    return raw
