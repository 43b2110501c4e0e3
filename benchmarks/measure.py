"""Timing: candidates take turns, so that a machine that slows down slows all of them; medians are compared."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping

#: What takes part in a comparison: called once per round; what it returns is its time in seconds, or None to be timed.
Candidate = Callable[[], float | None]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of the table.

    ``value`` is ``ours`` over ``peer`` where there is a peer, otherwise ``ours``; ``bound`` is the largest value
    allowed, None where no promise was made. Times are medians in seconds.
    """

    name: str
    ours_s: float
    peer_s: float | None = None
    peer: str = ""
    bound: float | None = None
    rounds: int = 0
    note: str = ""

    @property
    def value(self) -> float:
        """The ratio, or the time where there is no peer."""
        return self.ours_s / self.peer_s if self.peer_s else self.ours_s

    @property
    def met(self) -> bool | None:
        """Whether the bound is kept; None where there is none."""
        return None if self.bound is None else self.value <= self.bound

    def as_dict(self) -> dict[str, object]:
        """The figure as plain data."""
        return dataclasses.asdict(self) | {"value": self.value, "met": self.met}


def interleaved(candidates: Mapping[str, Candidate], rounds: int) -> dict[str, float]:
    """Return the median time of each candidate in seconds; see ``samples``."""
    return {name: statistics.median(values) for name, values in samples(candidates, rounds).items()}


def samples(candidates: Mapping[str, Candidate], rounds: int) -> dict[str, list[float]]:
    """Return the times of each candidate in seconds, one for each round.

    Each round calls all of them, in turning order; a first round is not counted.
    """
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            took = _timed(candidates[name])
            if turn:
                times[name].append(took)
    return times


def _timed(candidate: Candidate) -> float:
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    try:
        took = candidate()
    finally:
        ended = time.perf_counter()
        gc.enable()
    return ended - started if took is None else took
