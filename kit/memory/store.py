"""The native event store, read into numpy: one record an event, laid out as native/interface/tracking_interface.h."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.core import ledger, scope
from kit.core.ledger import Resource
from kit.core.native import ffi, lib
from kit.core.native import text as c_text
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

_lock = threading.RLock()
_active = 0
_with_stacks = 0
_labels = Labels()


def begin(stacks: bool) -> int:
    """Start recording, or go on; return the number of events there are already."""
    global _active, _with_stacks, _labels
    with _lock:
        if not _active:
            lib.kit_events_clear()
            _labels = Labels()  # reports keep those of their own time
            ledger.listener = _listen
        _active += 1
        _with_stacks += stacks
        lib.kit_track_start(_with_stacks > 0)
        scope.tracking(+1)
        return int(lib.kit_events_count())


def end(stacks: bool) -> None:
    """Take one tracker off; the last one puts every hook back."""
    global _active, _with_stacks
    with _lock:
        _active -= 1
        _with_stacks -= stacks
        scope.tracking(-1)
        if _active:
            lib.kit_track_start(_with_stacks > 0)
        else:
            lib.kit_track_stop()
            ledger.listener = None


def active() -> bool:
    """Whether anybody tracks."""
    return _active > 0


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


def labels() -> Labels:
    """Return what kit says of its own things; grows while somebody tracks, begins anew with the next first tracker."""
    return _labels


def own_nbytes(n_events: int) -> int:
    """Return what recording ``n_events`` itself costs in memory, without the entries for kit's own objects."""
    return n_events * RECORD.itemsize


def copy_path(copy: int) -> str:
    """Return the path of a copy of ggml."""
    return c_text(lib.kit_track_copy_path(int(copy)))


def _listen(resource: Resource, opened: bool) -> None:
    """Mark the event of something kit has just opened with kit's own entry for it."""
    if not resource.address:
        return
    kind = KINDS.index(resource.kind)
    if resource.kind == "mapping":  # made by Python, where no hook of ours looks
        lib.kit_event_note(kind, resource.address, resource.nbytes, not opened)
    if opened:
        lib.kit_event_label(kind, resource.address, _number(resource))


def _number(resource: Resource) -> int:
    with _lock:
        return _labels.add(resource)
