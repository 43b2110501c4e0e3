"""Events: what was allocated and freed, as data. Python objects are made only for those somebody looks at."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from kit.core import ledger
from kit.core.scope import scope_path
from kit.memory import stacks, store
from kit.memory.once import once
from kit.memory.store import Records
from kit.tables import printable
from kit.units import bytes_text

PURPOSES = ("weights", "kv cache", "compute", "inputs", "staging", "metadata")
_USAGE_WEIGHTS, _USAGE_COMPUTE = 2, 3  # enum ggml_backend_buffer_usage, plus one
BY_DESIGN = 255  # usage of what kit allocates once for the process: its thread pool
_ALLOCATING = [store.KINDS.index(kind) for kind in ("allocator", "scheduler")]
_DEVICE = re.compile(r"(.*?)(\d*)", re.S)
_CACHE_NAME = re.compile(r"cache|(^|[._])kv", re.I)


@dataclass(frozen=True)
class Event:
    """One allocation or free.

    ``kind`` is context, buffer, allocator, scheduler, mapping or aligned; ``action`` alloc, free, or "free of
    older" for what was allocated before tracking began. ``size`` is bytes owned, ``asked`` bytes asked for.
    ``where`` is the innermost line outside kit; ``lines`` the line numbers of the whole stack outside kit.
    ``time_ns`` counts from the start of the tracker; ``device`` is named as `kit.devices` names it.
    """

    kind: str
    size: int
    buffer_type: str
    purpose: str
    owner: str
    library: str
    scope: str
    where: str
    lines: tuple[int, ...]
    time_ns: int
    action: str = "alloc"
    asked: int = 0
    name: str = ""
    address: int = 0
    thread: int = 0
    duration_ns: int = 0
    device: str = ""

    def __str__(self) -> str:
        what = f"{self.action} {self.kind} {self.name!r}" if self.name else f"{self.action} {self.kind}"
        return printable(
            f"{what} {bytes_text(self.size)} {self.buffer_type}, {self.purpose} of {self.owner} at {self.where or '?'}"
        )


class Recording:
    """Records of one tracker, and what their numbers mean.

    Args:
        records: events in order, the first of them event number ``first`` (from 0) of the store.
        elders: allocations before ``first`` that own some of the events, by their number (index + 1).
        incomplete: what the recording lacks, in words; empty where it is whole.
    """

    def __init__(
        self,
        records: Records,
        first: int,
        elders: dict[int, Records],
        start_ns: int,
        incomplete: tuple[str, ...] = (),
    ) -> None:
        self.records = records
        self.first = first
        self.elders = elders
        self.start_ns = start_ns
        self.end_ns = time.monotonic_ns()
        self.newest_opened = ledger.newest()
        self.incomplete = incomplete
        self.labels = store.labels()
        self._owners: dict[tuple[int, int], str] = {}

    def __len__(self) -> int:
        return len(self.records)

    def number(self, index: int) -> int:
        """The store's number of event ``index``."""
        return self.first + index + 1

    def index(self, number: int) -> int:
        """Index of the event with the store's ``number``; -1 if it is not of this recording."""
        index = int(number) - self.first - 1
        return index if 0 <= index < len(self.records) else -1

    def owner_record(self, record: Records) -> Records | None:
        """The allocation in whose call ``record`` happened."""
        return self._numbered(int(record["owner"]))

    def _numbered(self, number: int) -> Records | None:
        if not number or number >= 1 << 63:
            return None
        index = self.index(number)
        return self.records[index] if index >= 0 else self.elders.get(number)

    @once
    def passes(self) -> dict[int, tuple[int, int]]:
        """By scope number: which pass it lies in (from 0), and how many passes there were.

        A pass is a numbered scope (``token 7``, ``pass 3``); scopes outside of any are not in here.
        """
        scopes, first = np.unique(self.records["scope"], return_index=True)
        members: dict[tuple[str, ...], dict[str, int]] = {}
        found = {}
        for number in map(int, scopes[np.argsort(first)]):
            path = scope_path(number)
            depth = next((i for i, name in enumerate(path) if name[-1:].isdecimal()), None)
            if depth is not None:
                family = members.setdefault((*path[:depth], path[depth].rstrip("0123456789")), {})
                found[number] = (family.setdefault(path[depth], len(family)), family)
        return {number: (index, len(family)) for number, (index, family) in found.items()}

    def purpose(self, record: Records) -> str:
        """What the memory is for: as kit says, as ggml's usage says, as its owner says."""
        label = self.labels[int(record["label"])]
        if label is not None:
            return label.purpose
        return _purpose(int(record["kind"]), int(record["usage"]), self._in_allocator(record), int(record["name"]))

    def purpose_numbers(self, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the purposes of the events ``at``, equal where `purpose` is."""
        records = self.records[at]
        said = self.labels.purposes(records["label"])
        names = np.where(said > 0, 0, records["name"].astype(np.int64))
        columns = (said, records["kind"], records["usage"], self._in_allocators(records), names)
        inverse = joined(*columns)
        known: dict[str, int] = {}
        numbers = []
        for i in np.unique(inverse, return_index=True)[1]:
            label, kind, usage, inside, name = (int(column[i]) for column in columns)
            purpose = self.labels.purpose(label) or _purpose(kind, usage, inside, name)
            numbers.append(known.setdefault(purpose, len(known)))
        return np.array(numbers, np.int64)[inverse]

    def _in_allocators(self, records: Records) -> npt.NDArray[np.int64]:
        owners, inverse = np.unique(records["owner"], return_inverse=True)
        within = (owners > self.first) & (owners <= self.first + len(self))
        inside = np.zeros(len(owners), np.int64)
        kinds = self.records["kind"][owners[within].astype(np.int64) - self.first - 1]
        inside[within] = np.isin(kinds, _ALLOCATING)
        for i in np.flatnonzero(~within):
            inside[i] = self._allocates(int(owners[i]))
        return inside[inverse.ravel()]

    def owner(self, record: Records) -> str:
        """Who holds it: kit's owner, or that of the context, allocator or scheduler it was made in."""
        label = self.labels[int(record["label"])]
        if label is not None:
            return label.owner
        if int(record["usage"]) == BY_DESIGN:
            return "thread pool"
        above = self.owner_record(record)
        if above is not None and self.labels[int(above["label"])] is not None:
            return self.owner(above)
        purpose = self.purpose(record)
        if above is not None and purpose == "metadata":
            return self.owner(above)
        kind = store.KINDS[int(record["kind"])]
        return kind if purpose in ("metadata", "staging") else purpose

    def _in_allocator(self, record: Records) -> bool:
        return self._allocates(int(record["owner"]))

    def _allocates(self, number: int) -> bool:
        above = self._numbered(number)
        return above is not None and int(above["kind"]) in _ALLOCATING

    def name(self, record: Records) -> str:
        """Name of the tensor or object, if it has one."""
        label = self.labels[int(record["label"])]
        return label.name if label is not None else store.name_text(int(record["name"]))

    def event(self, index: int) -> Event:
        """Event ``index`` as an object."""
        r = self.records[index]
        return Event(
            kind=store.KINDS[int(r["kind"])],
            size=int(r["size"]),
            buffer_type=store.name_text(r["type"]),
            purpose=self.purpose(r),
            owner=self.owner(r),
            library=library_name(int(r["copy"])),
            scope=" / ".join(scope_path(int(r["scope"]))),
            where=stacks.where(int(r["stack"])),
            lines=tuple(frame.line for frame in stacks.user_frames(int(r["stack"]))),
            time_ns=int(r["time_ns"]) - self.start_ns,
            action={store.ALLOC: "alloc", store.FREE: "free"}.get(int(r["action"]), "free of older"),
            asked=int(r["asked"]),
            name=self.name(r),
            address=int(r["address"]),
            thread=int(r["thread"]),
            duration_ns=int(r["duration_ns"]),
            device=device_name(r),
        )

    def live_at(self, end: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Indices of the allocations that are live just after event ``end`` (-1: before the first)."""
        r = self.records[: end + 1]
        freed_before = (r["partner"] > 0) & (r["partner"] <= self.number(end)) & (r["action"] == store.ALLOC)
        return np.flatnonzero((r["action"] == store.ALLOC) & ~freed_before)


class Events(Sequence[Event]):
    """The events of a recording, each made when it is looked at."""

    def __init__(self, recording: Recording, indices: Sequence[int] | None = None) -> None:
        self._recording = recording
        self._indices: Sequence[int] = range(len(recording)) if indices is None else indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Events: ...
    def __getitem__(self, index: int | slice) -> Event | Events:
        if isinstance(index, slice):
            return Events(self._recording, self._indices[index])
        return self._recording.event(int(self._indices[index]))

    def __iter__(self) -> Iterator[Event]:
        for index in self._indices:
            yield self._recording.event(int(index))

    def __repr__(self) -> str:
        return f"<{len(self)} events>"


def joined(*columns: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Number rows of ``columns`` (not negative) from 0 so that equal rows, and only these, have equal numbers."""
    numbers = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        if column.max(initial=0) >= 1 << 32:
            column = np.unique(column, return_inverse=True)[1].ravel()
        n_values = int(column.max(initial=0)) + 1
        if span * n_values >= 1 << 62:
            numbers = np.unique(numbers, return_inverse=True)[1].ravel()
            span = int(numbers.max(initial=0)) + 1
        if n_values > 1:
            numbers = numbers * n_values + column.astype(np.int64)
        span *= n_values
    return np.unique(numbers, return_inverse=True)[1].ravel()


def _purpose(kind: int, usage: int, in_allocator: bool | int, name: int) -> str:
    """What memory is for of which kit says nothing: as ggml's usage says, as its owner, as its name."""
    if store.KINDS[kind] in ("context", "scheduler", "allocator") or usage == BY_DESIGN:
        return "metadata"
    if usage == _USAGE_WEIGHTS or store.KINDS[kind] == "mapping":
        return "weights"
    if usage == _USAGE_COMPUTE or in_allocator:
        return "compute"
    return "kv cache" if _CACHE_NAME.search(store.name_text(name)) else "staging"


def library_name(copy: int) -> str:
    """Name of a copy of ggml: ``kit`` for our own, else the last two parts of its path."""
    path = pathlib.Path(store.copy_path(copy))
    if path.name.startswith("libgkit") or not path.name:
        return "kit"
    return "/".join(path.parts[-2:])


def device_name(record: Records) -> str:
    """Name of the device in whose memory it is, as `kit.devices` names it.

    What is no buffer is on the host, and so is a CPU buffer, of which ggml names no device. A buffer of which ggml
    does not tell is on a device called as its buffer type.
    """
    if store.KINDS[int(record["kind"])] != "buffer":
        return "CPU.0"
    type_ = store.name_text(int(record["type"]))
    name = store.name_device(int(record["type"])) or type_
    if not name or name.startswith("CPU"):
        return "CPU.0"
    base, number = _DEVICE.fullmatch(name).groups()  # type: ignore[union-attr]  # it matches every text
    return f"{base}.{number or 0}"
