"""Measuring what memory costs on this machine: each kind, each size, to and from each device.

Python asks for one trip at a time; an interrupt waits for the end of a trip, where nothing is held but what the
``with`` blocks here give back.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from kit.checks import is_whole, whole
from kit.core.buffer import Buffer, refuse_impossible
from kit.core.devices import device_handle, device_handles
from kit.core.interrupts import Uninterrupted, uninterrupted
from kit.core.native import ffi, lib
from kit.core.pools import Pools
from kit.errors import ArgumentError, OutOfMemory
from kit.memory.cost_records import Copy, Cost, Costs, Refused
from kit.memory.cost_ways import PooledWay, Way, all_ways

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
#: Without a number asked for, a measurement repeats within these bounds until it has taken this long.
FEWEST, MOST, ENOUGH_NS = 5, 400, 100_000_000


def costs(
    sizes: Sequence[int] | None = None, repeats: int | None = None, devices: Sequence[str] | None = None
) -> Costs:
    """Measure allocate, first touch, free and copies of every kind of memory here.

    Args:
        sizes: bytes; default 4 KiB to 256 MiB. Up to three times the largest is held at once.
        repeats: trips per kind and size; default: as many as fit into a tenth of a second, at least 5.
        devices: names as `kit.devices` gives them; default: all.

    Raises:
        ArgumentError: a size or a number of repeats below 1, or no such device.
        OutOfMemory: this machine cannot hold what the largest size needs.
        KeyboardInterrupt: interrupted; nothing is left behind.
    """
    wanted = _checked(SIZES if sizes is None else sizes, repeats)
    names = list(device_handles() if devices is None else dict.fromkeys(devices))
    for name in names:
        device_handle(name)
    found: list[Cost] = []
    copied: list[Copy] = []
    refused: list[Refused] = []
    pool = PooledWay()
    with uninterrupted as interrupts, pool.opened(wanted[-1] + mmap.PAGESIZE):
        for way in (*all_ways(names), pool):
            for nbytes in wanted:
                record = measure(way, nbytes, repeats, interrupts)
                if isinstance(record, Refused):
                    refused.append(record)
                    continue
                found.append(record)
                for name in names if way.writable else ():
                    copy = _copy_or_refusal(way, name, nbytes, repeats, interrupts)
                    if isinstance(copy, Refused):
                        refused.append(copy)
                    elif copy is not None:
                        copied.append(copy)
    return Costs(found, copied, refused)


def measure(
    way: Way, nbytes: int, repeats: int | None = None, interrupts: Uninterrupted | None = None
) -> Cost | Refused:
    """Measure trips of one kind at one size; a kind the system refuses comes back with its reason."""
    cost = ffi.new("kit_cost *")
    times: list[tuple[int, int, int]] = []
    for _ in _repetitions(repeats, interrupts):
        error = way.trip(nbytes, cost)
        if error:
            return Refused(way.kind, nbytes, way.device, way.refusal(error))
        times.append((int(cost.alloc_ns), int(cost.touch_ns), int(cost.free_ns)))
    got, note = way.outcome(nbytes, cost)
    parts = np.array(times, np.int64)
    totals = parts.sum(axis=1)
    alloc, touch, free = (int(value) for value in np.median(parts, axis=0))
    total, low, high = _spread(totals)
    return Cost(
        kind=way.kind,
        nbytes=nbytes,
        alloc_ns=alloc,
        touch_ns=touch,
        free_ns=free,
        total_ns=total,
        total_p10_ns=low,
        total_p90_ns=high,
        first_ns=int(totals[0]),
        faults=int(cost.faults),
        repeats=len(times),
        device=way.device,
        buffer_type=way.buffer_type,
        asked=way.asked,
        got=got,
        note=note,
    )


def _copy_or_refusal(
    way: Way, device: str, nbytes: int, repeats: int | None, interrupts: Uninterrupted
) -> Copy | Refused | None:
    try:
        return measure_copy(way, device, nbytes, repeats, interrupts)
    except OutOfMemory as error:
        return Refused(f"copy from {way.kind}", nbytes, device, str(error))


def measure_copy(
    way: Way, device: str, nbytes: int, repeats: int | None = None, interrupts: Uninterrupted | None = None
) -> Copy | None:
    """Measure copies between memory of ``way`` and a buffer of ``device``; None where the CPU cannot reach the one.

    Raises:
        OutOfMemory: no room for the buffer.
    """
    with way.hold(nbytes + mmap.PAGESIZE) as source, contextlib.ExitStack() as stack:
        if source is None:
            return None
        address, note = source
        target, buffer_type = _target(stack, device, nbytes)
        address = _as_far_into_a_page(address, target.data)
        to_ns, from_ns = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.kit_cost_copy(target, address, to_ns, from_ns)  # the first fills the buffer's pages and is not counted
        times = []
        for _ in _repetitions(repeats, interrupts):
            lib.kit_cost_copy(target, address, to_ns, from_ns)
            times.append((int(to_ns[0]), int(from_ns[0])))
    to, back = (_spread(column) for column in np.array(times, np.int64).T)
    return Copy(way.kind, nbytes, device, buffer_type, *to, *back, len(times), note)


def _as_far_into_a_page(address: Any, other: Any) -> Any:
    """Move ``address`` up to where ``other`` lies in its page: some CPUs copy three times slower between places
    that differ in this, which would be taken for a property of the kind of memory."""
    offset = (int(ffi.cast("uintptr_t", other)) - int(ffi.cast("uintptr_t", address))) % mmap.PAGESIZE
    return ffi.cast("char *", address) + offset


def _target(stack: contextlib.ExitStack, device: str, nbytes: int) -> tuple[Any, str]:
    """Return a tensor of ``nbytes`` in ``device``'s own buffer type, and the name of the buffer."""
    pools = Pools("costs", slots=1)
    stack.callback(pools.free)
    raw = lib.ggml_new_tensor_1d(pools.room(), lib.GGML_TYPE_I8, nbytes)
    buffer_type = lib.ggml_backend_dev_buffer_type(device_handle(device))
    room = int(lib.ggml_backend_buft_get_alloc_size(buffer_type, raw))
    buffer = Buffer.allocate(buffer_type, room, purpose="staging", owner="costs", name="target of copies")
    stack.callback(buffer.close)
    lib.ggml_backend_tensor_alloc(buffer.handle, raw, ffi.cast("void *", buffer.base))
    return raw, buffer.buffer_type


def _repetitions(repeats: int | None, interrupts: Uninterrupted | None) -> Iterator[int]:
    start = time.perf_counter_ns()
    for i in range(MOST if repeats is None else repeats):
        if interrupts is not None:
            interrupts.check()
        if repeats is None and i >= FEWEST and time.perf_counter_ns() - start > ENOUGH_NS:
            return
        yield i


def _spread(times: Any) -> tuple[int, int, int]:
    median, low, high = np.percentile(times, (50, 10, 90))
    return int(median), int(low), int(high)


def _checked(sizes: Sequence[int], repeats: int | None) -> list[int]:
    wanted = sorted(set(checked_sizes(sizes)))
    if repeats is not None:
        checked_repeats(repeats)
    refuse_impossible(3 * wanted[-1], "host memory", "measuring the largest size", True)
    return wanted


def checked_sizes(sizes: object) -> list[int]:
    """Return ``sizes`` if they are whole numbers of bytes, one or more, each at least 1; raise ArgumentError."""
    given = list(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, (str, bytes)) else None
    if not given or not all(is_whole(size) for size in given):
        raise ArgumentError(f"sizes are {sizes!r}; give a list of whole numbers of bytes, each of at least 1 byte")
    return [int(size) for size in given]


def checked_repeats(repeats: object) -> None:
    """Raise ArgumentError unless ``repeats`` is a whole number from 1."""
    whole("repeats", repeats)
