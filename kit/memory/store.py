"""The native event store, read into numpy: one record an event, laid out as native/interface/tracking_interface.h."""

from __future__ import annotations

import os
import threading
from typing import Any, Literal

import numpy as np
import numpy.ma  # np.unique would do it later: perhaps in a thread that a fork leaves in the middle
import numpy.typing as npt

from kit.core import ledger, scope
from kit.core.ledger import Resource
from kit.core.native import ffi, lib
from kit.core.native import text as c_text
from kit.memory.foreign import follow_ctypes, unfollow_ctypes
from kit.memory.labels import Labels

#: ``partner`` and ``owner`` are numbers of events: index plus one, 0 for none.
RECORD = np.dtype(
    [
        ("time_ns", "<i8"),
        ("address", "<u8"),
        ("asked", "<u8"),
        ("size", "<u8"),
        ("partner", "<u8"),
        ("owner", "<u8"),
        ("duration_ns", "<u4"),
        ("thread", "<u4"),
        ("stack", "<u4"),
        ("scope", "<u4"),
        ("type", "<u4"),
        ("label", "<u4"),
        ("name", "<u4"),
        ("kind", "u1"),
        ("action", "u1"),
        ("usage", "u1"),
        ("copy", "u1"),
    ]
)
KINDS = ("", "context", "buffer", "allocator", "scheduler", "mapping", "aligned")
ALLOC, FREE, FREE_OF_OLDER = 1, 2, 3

Records = npt.NDArray[Any]

assert ffi.sizeof("kit_event") == RECORD.itemsize

# Who tracks is known natively (native/tracking.c), in steps that nothing interrupts. What depends on it here is
# brought in line afterwards, again and again until it is: another begin or end may come in between, from another
# thread, a signal handler or a finalizer.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_epoch = 0
_labels = Labels()


def new_tracking() -> Any:
    """Return the native note of one who tracks, who does not yet."""
    return ffi.new("kit_tracking *")


def begin(tracking: Any, ticket: int, stacks: bool) -> bool:
    """Start recording under ``ticket``, or go on; return False where ``tracking`` is active already."""
    begins = bool(lib.kit_track_start(tracking, ticket, stacks))
    if begins:
        _settle()
        follow_ctypes(int(tracking.epoch))
    return begins


def end(tracking: Any, ticket: int = 0) -> bool:
    """Take one tracker off, if it began under ``ticket`` (0: any); the last one puts every hook back."""
    ends = bool(lib.kit_track_stop(tracking, ticket))
    _settle()
    if ends:
        unfollow_ctypes()
    return ends


def active() -> bool:
    """Whether anybody tracks."""
    return int(lib.kit_track_ended()) < int(lib.kit_track_epoch())


def _settle() -> None:
    global _epoch, _labels
    with _lock:
        while True:
            on, epoch = active(), int(lib.kit_track_epoch())
            if epoch != _epoch:
                _epoch, _labels = epoch, Labels()  # reports keep those of their own time
            scope.tracking(on)
            ledger.listener = _listen if on else None
            if (on, epoch) == (active(), int(lib.kit_track_epoch())):
                return


def losses(tracking: Any) -> tuple[str, ...]:
    """Say what the recording of ``tracking`` lacks, in words; empty where it is whole."""
    lost = lib.kit_track_losses(tracking)
    told = (
        (lost.events, "{:,} allocations and frees are missing: no memory was left for their records"),
        (lost.frees, "{:,} frees were not seen: something calls ggml by an address it got before tracking began"),
        (lost.copies, "a copy of ggml is missing: no more of them can be told apart"),
        (lost.names, "{:,} names are missing: no memory was left for them"),
        (lost.lines, "{:,} events have no line: no memory was left for their stacks"),
    )
    return tuple(text.format(int(number)) for number, text in told if number)


def read(first: int = 0, most: int | None = None) -> Records:
    """Return a copy of the events from ``first`` on, at ``most`` so many."""
    count = int(lib.kit_events_count()) - first
    count = count if most is None else min(count, most)
    records = np.empty(max(count, 0), RECORD)
    if count > 0:
        done = lib.kit_events_copy(first, count, ffi.from_buffer("kit_event *", records, require_writable=True))
        records = records[:done]
    return records


def name_text(number: int) -> str:
    """Return an interned name: of a buffer type or a tensor."""
    return c_text(lib.kit_name_text(int(number)))


def name_device(number: int) -> str:
    """Return ggml's name of the device of a buffer type; empty where ggml does not say."""
    return c_text(lib.kit_name_device(int(number)))


def are_files(records: Records) -> npt.NDArray[np.bool_]:
    """Tell which records are of mapped files, and not of memory that Python has mapped."""
    types = [number for number in np.unique(records["type"]) if name_text(number) == "mapped file"]
    found: npt.NDArray[np.bool_] = (records["kind"] == KINDS.index("mapping")) & np.isin(records["type"], types)
    return found


def labels() -> Labels:
    """Return what kit says of its own things; grows while somebody tracks, begins anew with the next first tracker."""
    return _labels


def own_nbytes(n_events: int) -> int:
    """Return what recording ``n_events`` itself costs in memory, without the entries for kit's own objects."""
    return n_events * RECORD.itemsize


def copy_path(copy: int) -> str:
    """Return the path of a copy of ggml."""
    return c_text(lib.kit_track_copy_path(int(copy)))


def _listen(resource: Resource, what: Literal["opened", "changed", "closed"]) -> None:
    """Mark the event of something kit has just opened with kit's own entry for it."""
    if not resource.address:
        return
    kind = KINDS.index(resource.kind)
    if resource.kind == "mapping" and what != "changed":  # made by Python, where no hook of ours looks
        type_ = ffi.new("char[]", resource.buffer_type.encode())
        lib.kit_event_note(kind, resource.address, resource.nbytes, type_, what == "closed")
    if what != "closed":
        lib.kit_event_label(kind, resource.address, _labels.add(resource))
