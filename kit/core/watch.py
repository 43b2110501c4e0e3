"""Looking at nodes while a graph runs: copies made natively, changes made by Python functions.

The trip of a change: (1) ggml's scheduler computes up to the watched node and synchronizes; (2) it calls
native/watch.c on the thread that called compute; (3) that calls `kit_on_stage`, which takes the GIL and
runs the function; (4) what the function raises is kept, the computation is told to stop, and `Watch.compute`
raises it again once ggml has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.graph import Graph
from kit.core.native import ffi
from kit.core.tensor import Tensor


@dataclass
class Watched:
    """One node: where its bytes go (``copy_to``, contiguous, of the node's size), or a function to call, or both."""

    tensor: Tensor
    copy_to: npt.NDArray[np.float32] | None = None
    call: Callable[[Tensor], None] | None = None


class Watch:
    """Watched nodes of one computation."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        ordered = sorted(watched, key=lambda w: w.tensor.address)
        self._watched = ordered
        self._error: BaseException | None = None
        self._items = ffi.new("kit_watch_item[]", max(1, len(ordered)))
        self._alive = [self._fill(i, w) for i, w in enumerate(ordered)]
        self._self = ffi.new_handle(self)
        self.handle: Any = ffi.new("kit_watch *", {"items": self._items, "n_items": len(ordered), "user": self._self})

    def _fill(self, index: int, watched: Watched) -> Any:
        item = self._items[index]
        item.tensor = watched.tensor.p
        item.call = index if watched.call else -1
        if watched.copy_to is None:
            return None
        if not watched.tensor.contiguous:  # bytes with gaps: read in Python
            item.call = index
            return None
        pointer = ffi.from_buffer("char[]", watched.copy_to, require_writable=True)
        item.copy_to = pointer
        item.nbytes = watched.copy_to.nbytes
        return pointer

    def called(self, index: int) -> bool:
        """Run the function of one node; False ends the computation."""
        watched = self._watched[index]
        try:
            if watched.call is not None:
                watched.call(watched.tensor)
            elif watched.copy_to is not None:
                watched.copy_to[...] = transfer.read(watched.tensor).reshape(watched.copy_to.shape)
        except BaseException as error:
            self._error = error
            return False
        return True

    def compute(self, graph: Graph) -> None:
        """Compute ``graph`` under this watch; raises as `Backend.compute`, and what a function raised, as it is."""
        stopped: KeyboardInterrupt | None = None
        try:
            graph.backend.compute(graph, self.handle)
        except KeyboardInterrupt as interrupt:  # also how a function's error ends the computation
            stopped = interrupt
        error, self._error = self._error or stopped, None
        if error is not None:
            raise error
