"""The ledger of live native resources: what kit has opened and not yet closed.

Pure data. Whoever allocates writes an entry, and the same hand strikes it out when it frees; an
object lost without a close stays visible here.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kit.units import bytes_text


@dataclass(frozen=True)
class Resource:
    """One live native resource.

    ``kind`` is context, buffer, allocator, scheduler or mapping; ``purpose`` is weights, kv cache,
    compute, inputs, staging or metadata; ``nbytes`` is what the resource itself holds.
    """

    kind: str
    nbytes: int
    name: str
    owner: str
    purpose: str
    buffer_type: str = ""
    library: str = "kit"
    address: int = field(default=0, compare=False, repr=False)  # ggml's pointer, or a mapping's first byte

    def __str__(self) -> str:
        where = f" in {self.buffer_type}" if self.buffer_type else ""
        owner = self.owner if self.owner.isprintable() else repr(self.owner)
        return f"{self.kind} {self.name!r} of {owner}: {bytes_text(self.nbytes)}, {self.purpose}{where}"


_live: dict[int, Resource] = {}
_numbers = itertools.count(1)
_lock = threading.RLock()  # a finalizer may run inside any of these functions, on the same thread
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


#: Told of every resource that is opened, changed or closed while somebody tracks.
listener: Callable[[Resource, Literal["opened", "changed", "closed"]], None] | None = None


def opened(resource: Resource) -> int:
    """Enter ``resource``; return the number to give to `closed`."""
    with _lock:
        number = next(_numbers)
        _live[number] = resource
    told = listener  # it may go at any moment
    if told is not None:
        told(resource, "opened")
    return number


def closed(number: int) -> None:
    """Strike out the resource entered under ``number``."""
    with _lock:
        resource = _live.pop(number, None)
    told = listener
    if told is not None and resource is not None:
        told(resource, "closed")


def changed(number: int, resource: Resource) -> None:
    """Replace the entry ``number``, for a resource that grew."""
    with _lock:
        if number in _live:
            _live[number] = resource
    told = listener
    if told is not None:
        told(resource, "changed")


def live() -> list[Resource]:
    """Return what is open now, oldest first."""
    with _lock:
        return [resource for _, resource in sorted(_live.items(), key=lambda item: item[0])]


def newest() -> int:
    """Return the number of the newest of what is open now; 0 if nothing is."""
    with _lock:
        return next(reversed(_live), 0)


def numbers() -> dict[tuple[str, int], int]:
    """Return the numbers of what is open now, by kind and address; what is opened later has a larger one."""
    with _lock:
        return {(resource.kind, resource.address): number for number, resource in _live.items()}
