"""A pool for inputs in memory that stays in place: locked pages, or a device's pinned host buffer.

Off unless somebody makes one: `pinned_pays` measures whether a device gains from it. On the CPU it never
does, because tensors are read where they lie; what a pool saves there is the allocating, not the copying.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kit.core.buffer import Buffer
from kit.core.interrupts import Uninterrupted, uninterrupted
from kit.core.native import ffi, lib
from kit.errors import ArgumentError, ClosedError, OutOfMemory
from kit.log import log
from kit.memory.cost_records import Copy
from kit.memory.cost_ways import BufferWay, PagesWay, Way, host_type, reads_in_place
from kit.memory.costs import checked_repeats, checked_sizes, measure_copy
from kit.memory.pages import HostPages, Pages
from kit.units import bytes_text, time_text

#: Slices start on multiples of a cache line; ggml's CPU buffers ask for no more than that.
ALIGNMENT = 64
#: What inputs of a decode step and of a prefill of 512 tokens weigh, about.
INPUT_SIZES = (16 << 10, 4 << 20)
#: A gain below this is the drift of a busy machine.
WORTH = 0.9
_NAME = "pool"


@dataclass(frozen=True)
class PinnedVerdict:
    """Whether copies of inputs to ``device`` are faster from ``pinned`` memory; true where they are.

    ``copies`` are the measurements behind it: per size one from ordinary memory and one from pinned memory.
    """

    device: str
    pays: bool
    pinned: str
    reason: str
    copies: tuple[Copy, ...]

    def __bool__(self) -> bool:
        return self.pays

    def __str__(self) -> str:
        return f"{self.device}: {'pinned inputs pay' if self.pays else 'ordinary memory does'}; {self.reason}"


def pinned_pays(device: str = "CPU.0", sizes: Sequence[int] = INPUT_SIZES, repeats: int = 30) -> PinnedVerdict:
    """Measure whether inputs for ``device`` are better off in a `LockedPool`.

    Compares copies to the device from ordinary memory and from the memory the device pins (locked pages where it
    pins none). They pay where the device does not read ordinary memory in place and the copies of every size take
    less than 0.9 of the time.

    Raises:
        ArgumentError: no such device, no sizes or repeats, or some below 1.
        OutOfMemory: no room for the measurement.
    """
    checked_sizes(sizes)
    checked_repeats(repeats)
    host = host_type(device)
    pinned: Way = PagesWay("locked") if host is None else BufferWay("host buffer", device, host)
    with uninterrupted as held:
        pairs = [
            (_copy(PagesWay("mmap"), device, n, repeats, held), _copy(pinned, device, n, repeats, held)) for n in sizes
        ]
    return decide(device, reads_in_place(device), pinned.asked, pairs)


def decide(device: str, in_place: bool, pinned: str, pairs: Sequence[tuple[Copy, Copy]]) -> PinnedVerdict:
    """Return the verdict on pairs of copies, from ordinary and from pinned memory; see `pinned_pays`."""
    measured = ", ".join(
        f"{bytes_text(slow.nbytes)} in {time_text(fast.to_ns)} instead of {time_text(slow.to_ns)}"
        for slow, fast in pairs
    )
    notes = list(dict.fromkeys(fast.note for _, fast in pairs if fast.note))
    faster = all(fast.to_ns < WORTH * slow.to_ns for slow, fast in pairs)
    if in_place:
        why = "it reads inputs where they lie, so no copy is there to be made faster"
    elif notes:
        why = f"there is no pinned memory to be had ({'; '.join(notes)})"
    else:
        why = f"copies from pinned memory are {'' if faster else 'not clearly '}faster"
    pays = faster and not in_place and not notes
    return PinnedVerdict(device, pays, pinned, f"{why} ({measured})", tuple(copy for pair in pairs for copy in pair))


class LockedPool:
    """One region taken and locked once; `buffer` cuts ggml buffers out of it, in a microsecond and without a fault.

    Args:
        nbytes: size of the region.
        device: pin the region in this device's host buffer type; default, and where the device has none: locked pages.

    ``memory`` names what the region is; where it fell back to ordinary memory, ``locked`` is False and ``note`` and
    the log say why. The ledger shows the rest of the region as staging, and each buffer as what it is for. A tracker
    sees the region as one thing, and buffers in it as 0 bytes of their own.

    Raises:
        OutOfMemory: no such memory. ArgumentError: fewer bytes than one slice, or no such device.
    """

    def __init__(self, nbytes: int, device: str | None = None, *, owner: str = "pool") -> None:
        if nbytes < ALIGNMENT:
            raise ArgumentError(f"a pool of {nbytes} bytes is too small; give at least {ALIGNMENT}")
        host = host_type(device) if device is not None else None
        region = Pages(nbytes, name=_NAME, owner=owner) if host is None else HostPages(host, nbytes, _NAME, owner)
        self.nbytes = nbytes
        self.owner = owner
        self.memory = region.got
        self.note = region.note
        self.locked = not region.note
        self._state: _State | None = _State(region, nbytes)
        if self.note:
            log.warning("%s: %s", owner, self.note, extra={"nbytes": nbytes})
            region.touch()  # not locked, but at least there

    def buffer(self, nbytes: int, *, name: str = "input", purpose: str = "inputs") -> Buffer:
        """Return a ggml buffer of ``nbytes`` inside the region; its ``close()`` gives the slice back.

        Raises:
            OutOfMemory: no free slice is long enough. ClosedError: the pool was closed.
        """
        state = self._open_state()
        if nbytes < 1:
            raise ArgumentError(f"{name}: a buffer of {nbytes} bytes; give at least 1")
        return _PooledBuffer(state, nbytes, purpose, self.owner, name)

    @property
    def free_nbytes(self) -> int:
        """Bytes not cut out at the moment; in more than one piece perhaps."""
        return self._open_state().slices.free_nbytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._state is None

    def close(self) -> None:
        """Cut nothing out any more, and give the region back as soon as its last buffer is closed."""
        state, self._state = self._state, None
        if state is None:
            return
        if state.slices.n_taken:
            log.warning("%s: closed while %d buffers use it; it goes with the last", self.owner, state.slices.n_taken)
        else:
            state.region.close()

    def _open_state(self) -> _State:
        if self._state is None:
            raise ClosedError(f"the pool of {self.owner} was closed")
        return self._state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"LockedPool({self.owner!r}, closed)"
        free = f"{bytes_text(self.free_nbytes)} of {bytes_text(self.nbytes)} free"
        return f"LockedPool({self.owner!r}, {free}, {self.memory}{'; ' + self.note if self.note else ''})"


class _State:
    """The region and its slices; lives as long as the pool or any buffer in it."""

    def __init__(self, region: Pages | HostPages, nbytes: int) -> None:
        self.region = region
        self.slices = Slices(nbytes)
        self.base = int(ffi.cast("uintptr_t", region.base))

    def show(self) -> None:
        """Keep the ledger's sum true: what was cut out is shown by the buffers."""
        if not self.region.closed:
            self.region.held(self.slices.unshown_nbytes)


class _PooledBuffer(Buffer):
    """A ggml buffer over a slice; the slice outlives it by its finalizer, and the region the slice."""

    def __init__(self, state: _State, nbytes: int, purpose: str, owner: str, name: str) -> None:
        start = state.slices.take(nbytes, name)
        self._slice = weakref.finalize(self, _give_back, state, start)
        handle = lib.ggml_backend_cpu_buffer_from_ptr(ffi.cast("void *", state.base + start), nbytes)
        if handle == ffi.NULL:
            raise OutOfMemory(f"{name}: ggml made no buffer over a slice of {bytes_text(nbytes)}", nbytes=nbytes)
        super().__init__(handle, purpose=purpose, owner=owner, name=name)
        state.show()

    def close(self) -> None:
        super().close()
        self._slice()


def _give_back(state: _State, start: int) -> None:
    state.slices.give_back(start)
    state.show()


class Slices:
    """Which bytes of a region are free: first fit, neighbours joined.

    `give_back` only notes the slice, because a finalizer may call it at any moment, inside `take` too;
    the next `take` enters it.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: list[tuple[int, int]] = [(0, nbytes)]  # start, end; ascending
        self._taken: dict[int, tuple[int, int]] = {}  # start -> end, bytes asked for
        self._returned: deque[int] = deque()
        self._lock = threading.RLock()

    def take(self, nbytes: int, name: str = "a slice") -> int:
        """Return the start of a slice of ``nbytes``; raises OutOfMemory where none is free."""
        with self._lock:
            self._collect()
            for i, (start, end) in enumerate(self._free):
                stop = min(end, start + _padded(nbytes))  # the last slice of a region may end inside a cache line
                if nbytes <= stop - start:
                    self._free[i : i + 1] = [(stop, end)] if stop < end else []
                    self._taken[start] = (stop, nbytes)
                    return start
            longest = max((end - start for start, end in self._free), default=0)
        raise OutOfMemory(
            f"{name}: no {bytes_text(nbytes)} in one piece in a pool of {bytes_text(self.nbytes)}; "
            f"{bytes_text(longest)} is the longest free one: close buffers, or make a larger pool",
            nbytes=nbytes,
        )

    def give_back(self, start: int) -> None:
        """Note that the slice that begins at ``start`` is free."""
        self._returned.append(start)

    @property
    def free_nbytes(self) -> int:
        """Bytes of all free slices."""
        with self._lock:
            return self.nbytes - sum(end - start for start, (end, _) in self._used())

    @property
    def unshown_nbytes(self) -> int:
        """Bytes outside the slices as they were asked for: the free ones, and what filled up cache lines."""
        with self._lock:
            return self.nbytes - sum(asked for _, (_, asked) in self._used())

    @property
    def n_taken(self) -> int:
        """Slices in use."""
        with self._lock:
            return len(self._used())

    def _used(self) -> list[tuple[int, tuple[int, int]]]:
        returned = set(self._returned)
        return [item for item in self._taken.items() if item[0] not in returned]

    def _collect(self) -> None:
        while self._returned:
            start = self._returned.popleft()
            self._free.append((start, self._taken.pop(start)[0]))
        joined: list[tuple[int, int]] = []
        for start, end in sorted(self._free):
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        self._free = joined


def _copy(way: Way, device: str, nbytes: int, repeats: int, interrupts: Uninterrupted) -> Copy:
    copy = measure_copy(way, device, nbytes, repeats, interrupts)
    if copy is None:
        raise ArgumentError(f"{way.asked} of {device} is not memory the CPU can write inputs to")
    return copy


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
