"""Walking through one pass: a pause after each stage, in the caller's own thread.

The pass has compute memory of its own and stands still between two steps: nothing runs, no thread waits. It can
be left and resumed, and edits made at a pause are what the rest of the pass sees.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.apart import ApartGraph
from kit.core.interrupts import uninterrupted
from kit.core.scope import scope
from kit.errors import ArgumentError, BusyError, ClosedError, NotComputedError
from kit.models.architecture.lens import top_entries
from kit.models.architecture.stages import Stage
from kit.models.cache.cells import MAIN, Batch
from kit.models.session.passes import BuiltPass
from kit.models.session.run import LensEntry
from kit.units import shape_text, time_text

if TYPE_CHECKING:
    from kit.models.session.session import Session

Level = Literal["stage", "block"]


class Step:
    """One pause: the value of a stage, while the walk stands there.

    ``value`` is a copy that may be changed; `commit` writes it back for the rest of the pass.
    ``time_ns`` is what computing from the last pause to this one took.
    """

    def __init__(self, walk: Walk, stage: Stage, time_ns: int) -> None:
        self.name = stage.name
        self.shape = stage.seen_shape
        self.time_ns = time_ns
        self._walk = walk
        self._stage = stage
        self._value: npt.NDArray[np.float32] | None = None

    @property
    def value(self) -> npt.NDArray[np.float32]:
        """The stage's values, copied when first asked for.

        Raises:
            NotComputedError: the walk has moved on without anybody having looked.
        """
        if self._value is None:
            self._require_here("read")
            self._value = np.array(self._stage.show(transfer.read(self._stage.tensor)))
        return self._value

    @value.setter
    def value(self, new: npt.ArrayLike) -> None:
        self._value = np.array(self._stage.restore(new, "a value"))
        self._value = np.array(self._stage.show(self._value))

    def commit(self) -> None:
        """Write ``value`` back, so that the rest of the pass sees it.

        Raises:
            ShapeError: it has another shape by now. NotComputedError: the walk has moved on.
        """
        self._require_here("change")
        edited = self._stage.restore(self.value, "the edited value")
        transfer.write(self._stage.tensor, edited.reshape(self._stage.tensor.shape))
        self._walk.committed(self._stage, self.value)

    def lens(self, k: int = 5) -> list[LensEntry]:
        """Return the ``k`` tokens the model would say next if the stream ended here, for the last token.

        Raises:
            ArgumentError: the stage is not as wide as the residual stream.
        """
        return self._walk.lens(self.name, self.value, k)

    def _require_here(self, doing: str) -> None:
        if not self._walk.stands_at(self):
            raise NotComputedError(
                f"the walk has moved on from {self.name!r}; {doing} step.value while it stands there"
            )

    def __repr__(self) -> str:
        return f"Step({self.name!r}, {shape_text(self.shape)}, {time_text(self.time_ns)})"


class Walk(Iterator[Step]):
    """An iterator over the stages of one pass; made by `Session.steps`."""

    def __init__(self, session: Session, built: BuiltPass, batch: Batch, level: Level) -> None:
        self._session = session
        self._built = built
        self._batch = batch
        self._apart = ApartGraph(built.graph, "a walk")
        cells = session.cache.cells
        built.fill(batch, cells)
        stages = built.seen(np.concatenate([cells.of(MAIN), batch.cells]))
        index = self._apart.index_of()
        chosen = [stage for stage in stages.values() if level == "stage" or _ends_block(stage.name)]
        self._route = sorted(((index[stage.tensor.address], stage) for stage in chosen), key=lambda pair: pair[0])
        self._next = 0
        self._node = 0
        self._step: Step | None = None
        self._done = False
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stages on the way, in order."""
        return tuple(stage.name for _, stage in self._route)

    @property
    def position(self) -> str | None:
        """Name of the stage the walk stands at; None before the first."""
        return self._step.name if self._step else None

    @property
    def finished(self) -> bool:
        """Whether the pass is complete and its tokens are in the cache."""
        return self._done

    def __next__(self) -> Step:
        if self._closed and not self._done:
            raise ClosedError(
                "this walk was ended: it was interrupted, or the session ran or reset something else; start new steps()"
            )
        if self._next == len(self._route):
            self.close()
            raise StopIteration
        end, stage = self._route[self._next]
        started = time.perf_counter_ns()
        with self._session.working(), scope(stage.name):
            try:
                self._apart.compute(self._node, end + 1)
            except BaseException:
                self.close()  # a node cut short may have overwritten what it reads
                raise
        self._node = end + 1
        self._next += 1
        self._step = Step(self, stage, time.perf_counter_ns() - started)
        if self._next == len(self._route):
            self._complete()
        return self._step

    def finish(self) -> Any:
        """Go on to the end without pausing; return the `Run` with the logits."""
        for _ in self:
            pass
        return self._session.last

    def _complete(self) -> None:
        self._done = True
        assert self._step is not None
        self._session.walked(self._batch, self._step.value)

    def stands_at(self, step: Step) -> bool:
        """Whether ``step`` is where the walk is, its memory still there."""
        return step is self._step and not self._closed

    def committed(self, stage: Stage, value: npt.NDArray[np.float32]) -> None:
        """Take note of an edit: edited logits are the result of the pass."""
        self._session.cache.cells.stain(self._batch)
        if stage.name == "logits":
            self._session.walked(self._batch, value, again=True)

    def lens(self, name: str, value: npt.NDArray[np.float32], k: int) -> list[LensEntry]:
        """See `Step.lens`."""
        model = self._session.model
        if name == "logits":
            return top_entries(value[-1], k, model.tokenizer)
        if name != "embed" and not name.endswith((".resid", ".resid_mid")):
            raise ArgumentError(
                f"the lens looks through stages of the residual stream (tokens, {model.config.n_embd}); "
                f"{name!r} is none: use embed, blk.*.resid_mid, blk.*.resid, or logits"
            )
        return model.lens(value[-1:], k)[0]

    def close(self) -> None:
        """Give the walk's memory back; a pass that is not complete is forgotten."""
        with uninterrupted:
            if not self._closed:
                self._closed = True
                self._step = None
                self._apart.close()
                self._built.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"Walk({'finished' if self._done else 'ended'})"
        return f"Walk(at {self.position or 'the start'}, {self._next} of {len(self._route)} stages)"


def _ends_block(name: str) -> bool:
    return name in ("embed", "norm", "logits") or name.endswith(".resid")


def refuse_reentry(busy: bool, what: str) -> None:
    """Raise BusyError when the session is in the middle of a pass."""
    if busy:
        raise BusyError(f"the session is in the middle of a pass; {what} after it, or use another session")
