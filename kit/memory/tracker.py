"""The tracker: sees every allocation of every ggml in the process while it is active."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Sequence
from typing import Self

from kit.core.interrupts import uninterrupted
from kit.errors import NotComputedError
from kit.memory import store
from kit.memory.events import Recording
from kit.memory.osmemory import ProcessMemory, process_memory
from kit.memory.report import MemoryReport
from kit.memory.store import Records

_tickets = itertools.count(1)


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
        self._start_ns = 0
        self._before: ProcessMemory | None = None
        self._recording: Recording | None = None
        self._after: ProcessMemory | None = None
        self._failure = ""
        self._tracking = store.new_tracking()
        self._dropped: weakref.finalize[..., Self] | None = None

    def start(self) -> Self:
        """Begin to track; an interrupt while it begins leaves nothing behind.

        Raises:
            NotComputedError: it is active already.
        """
        return self.__enter__()

    def stop(self) -> None:
        """End tracking, whatever happens; reports show what was so far. A second call does nothing."""
        self.__exit__()

    def report(self) -> MemoryReport:
        """Return what was seen up to now, or up to the end of tracking.

        Raises:
            NotComputedError: the tracker was never active, or there was no memory for what it saw when it ended.
        """
        if self.active:
            after, recording = process_memory(), self._read()
        elif self._recording is not None and self._after is not None:
            recording, after = self._recording, self._after
        elif self._failure:
            raise NotComputedError(f"what the tracker saw could not be kept when it ended: {self._failure}")
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
        return bool(self._tracking.ticket)

    def _begin(self, ticket: int) -> None:
        before = process_memory()
        if not store.begin(self._tracking, ticket, self.stacks):
            raise NotComputedError("this tracker is active already; make another one to nest them")
        self._before, self._recording, self._after, self._failure = before, None, None, ""
        self._start_ns = time.monotonic_ns()

    def _read(self) -> Recording:
        first = int(self._tracking.first)
        records = store.read(first)
        return Recording(records, first, _elders(records, first), self._start_ns, store.losses(self._tracking))

    def __enter__(self) -> Self:
        ticket = next(_tickets)
        dropped = weakref.finalize(self, store.end, self._tracking, ticket)  # one that is dropped ends, too
        dropped.atexit = False
        try:
            with uninterrupted:
                self._begin(ticket)
                self._dropped = dropped
        except BaseException:
            store.end(self._tracking, ticket)
            dropped.detach()
            raise
        return self

    def _stop(self) -> None:
        recording, after, failure = None, None, ""
        try:
            after = process_memory()
            recording = self._read()
        except (MemoryError, OSError) as error:
            failure = f"{type(error).__name__}: {error}"
        if store.end(self._tracking):
            self._recording, self._after, self._failure = recording, after, failure
        if self._dropped is not None:
            self._dropped.detach()

    def __exit__(self, *exc: object) -> None:
        try:
            with uninterrupted:
                if self.active:
                    self._stop()
        except BaseException:
            store.end(self._tracking)
            raise

    def __repr__(self) -> str:
        if self.active:
            return "Tracker(active)"
        return f"Tracker({len(self._recording)} events)" if self._recording is not None else "Tracker(not used yet)"


def _elders(records: Records, first: int) -> dict[int, Records]:
    """Owners that are older than the recording, and theirs, by their numbers."""
    found: dict[int, Records] = {}
    owners = records["owner"]
    wanted = list({int(number) for number in owners[(owners > 0) & (owners <= first)]})
    while wanted:
        number = wanted.pop()
        if number not in found:
            records = store.read(number - 1, 1)
            if not len(records):  # another thread has ended tracking meanwhile
                continue
            found[number] = records[0]
            above = int(found[number]["owner"])
            if 0 < above <= first:
                wanted.append(above)
    return found
