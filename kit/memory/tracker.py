"""The tracker: sees every allocation of every ggml in the process while it is active."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

import numpy as np

from kit.errors import NotComputedError
from kit.memory import store
from kit.memory.events import Recording
from kit.memory.foreign import follow_ctypes, unfollow_ctypes
from kit.memory.osmemory import ProcessMemory, process_memory
from kit.memory.report import MemoryReport
from kit.memory.store import Records


class Tracker:
    """Records contexts, buffers, allocators, schedulers, mapped files and aligned memory, ours and others'.

    Trackers may be nested, and several may be active at once, in any threads. A tracker may be used again: it
    then forgets what it saw before.

    Args:
        stacks: keep the Python stack of every event.
        by_design: shell globs of owners or names whose memory is meant to stay; their leaks get that verdict.
        kv_bytes_per_token: growth at this rate is a cache, no leak.
    """

    def __init__(
        self, *, stacks: bool = True, by_design: Sequence[str] = (), kv_bytes_per_token: int | None = None
    ) -> None:
        self.stacks = stacks
        self.by_design = tuple(by_design)
        self.kv_bytes_per_token = kv_bytes_per_token
        self._active = False
        self._first = 0
        self._start_ns = 0
        self._before: ProcessMemory | None = None
        self._recording: Recording | None = None
        self._after: ProcessMemory | None = None

    def start(self) -> Self:
        """Begin to track."""
        if self._active:
            raise NotComputedError("this tracker is active already; make another one to nest them")
        self._recording = None
        self._before = process_memory()
        self._first = store.begin(self.stacks)
        follow_ctypes()
        self._start_ns = time.monotonic_ns()
        self._active = True
        return self

    def stop(self) -> None:
        """End tracking; reports show what was so far. A second call does nothing."""
        if not self._active:
            return
        self._after = process_memory()
        self._recording = self._read()
        self._active = False
        unfollow_ctypes()
        store.end(self.stacks)

    def report(self) -> MemoryReport:
        """Return what was seen up to now, or up to the end of tracking.

        Raises:
            NotComputedError: the tracker was never active.
        """
        if self._active:
            after, recording = process_memory(), self._read()
        elif self._recording is not None and self._after is not None:
            recording, after = self._recording, self._after
        else:
            raise NotComputedError("the tracker has seen nothing; use it as `with kit.Tracker() as mem:`")
        assert self._before is not None
        return MemoryReport(
            recording,
            before=self._before,
            after=after,
            by_design=self.by_design,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )

    @property
    def active(self) -> bool:
        """Whether it tracks now."""
        return self._active

    def _read(self) -> Recording:
        records = store.read(self._first)
        return Recording(records, self._first, _elders(records, self._first), self._start_ns)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._active:
            return "Tracker(active)"
        return f"Tracker({len(self._recording)} events)" if self._recording is not None else "Tracker(not used yet)"


def _elders(records: Records, first: int) -> dict[int, Records]:
    """Owners that are older than the recording, and theirs, by their numbers."""
    found: dict[int, Records] = {}
    wanted = [int(n) for n in np.unique(records["owner"]) if 0 < n <= first]
    while wanted:
        number = wanted.pop()
        if number not in found:
            found[number] = store.read(number - 1, 1)[0]
            above = int(found[number]["owner"])
            if 0 < above <= first:
                wanted.append(above)
    return found
