"""Who keeps a leaked thing alive: the Python names that lead to kit's object for it, as far as they can be found."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kit.core import ledger
from kit.core.apart import ApartGraph
from kit.core.backend import _State
from kit.core.buffer import Buffer
from kit.core.graph import _Native
from kit.core.native import ffi
from kit.core.pools import Pools
from kit.core.tensor import Tensor
from kit.memory import store
from kit.memory.events import Recording
from kit.memory.leaks import Leak
from kit.memory.referrers import names_of
from kit.memory.sites import Numbers

_MAX_LEAKS = 8
_MAX_ABOVE = 4

_Place = tuple[str, int]  # kind and address


def with_holders(leaks: list[tuple[Leak, Numbers]], recording: Recording) -> list[Leak]:
    """Return ``leaks`` (each with the indices of its allocations), the first few of kit's own with who holds them.

    Who was closed since the recording is held by nobody, whatever may lie at its address now.
    """
    found = [leak for leak, _ in leaks]
    wanted = [i for i, leak in enumerate(found) if leak.library == "kit"][:_MAX_LEAKS]
    samples = _samples({i: leaks[i][1] for i in wanted}, recording) if wanted else {}
    while samples:
        i, sample = samples.popitem()
        found[i] = replace(found[i], held_by=tuple(names_of(sample, minor=(Tensor,))))
    return found


def _samples(wanted: dict[int, Numbers], recording: Recording) -> dict[int, object]:
    """One object for each of the wanted, where there is one. Nothing else refers to it when this returns."""
    objects = _objects()
    open_then = {place for place, number in ledger.numbers().items() if number <= recording.newest_opened}
    samples = {}
    for i, indices in wanted.items():
        for place in _places(recording, map(int, indices)):
            if place in objects and place in open_then:
                samples[i] = objects[place]
                break
    return samples


def _places(recording: Recording, indices: Iterable[int]) -> Iterator[_Place]:
    """Where the allocations lie, each followed by what it was made in: a scheduler for its buffer."""
    for index in indices:
        record: Any = recording.records[index]
        for _ in range(_MAX_ABOVE):
            yield store.KINDS[int(record["kind"])], int(record["address"])
            record = recording.owner_record(record)
            if record is None:
                break


def _objects() -> dict[_Place, object]:
    """kit's objects that own native memory, by its place."""
    found: dict[_Place, object] = {}
    for item in gc.get_objects():
        kind = type(item)
        if kind is Buffer:
            if item.closed:  # somebody else may have its address by now
                continue
            found["buffer", _address(item._handle)] = item
            if isinstance(item.holds, ffi.CData):
                found["mapping", _address(item.holds)] = item
        elif kind is Pools:
            found.update({("context", _address(raw)): item for raw, _, _ in item.chain})
        elif kind is _Native and not item.freed:
            found["context", _address(item.raw)] = item
        elif kind is ApartGraph:
            alive = item._finalizer.peek()
            if alive:
                found["allocator", _address(alive[2][0])] = item
        elif kind is _State:
            for name, pointer in (("scheduler", item.scheduler), ("allocator", item.allocator)):
                if pointer is not None:
                    found[name, _address(pointer)] = item
    return found


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
