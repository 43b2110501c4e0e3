"""Ways to get memory, each with one timed trip and a way to hold on to it; the clock is native (native/costs.c)."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from typing import Any, Protocol

from kit.core.buffer import Buffer
from kit.core.devices import device_handle
from kit.core.native import ffi, lib, text
from kit.memory.pages import WAYS, Pages, error_text, fallback_note, name_note

_OWNER = "costs"
_HUGE_PAGE = 2 << 20


class Way(Protocol):
    """One kind of memory: ``device`` is empty for the process's own; ``asked`` is what a record says was asked for;
    ``writable`` is whether the CPU can write there, so that copies can start from it."""

    kind: str
    writable: bool
    device: str
    buffer_type: str
    asked: str

    def trip(self, nbytes: int, cost: Any) -> int:
        """Allocate, touch, free once; fill the ``kit_cost``; return 0 or errno."""

    def outcome(self, nbytes: int, cost: Any) -> tuple[str, str]:
        """Return what was got and, where that is not what was asked for, why."""

    def refusal(self, error: int) -> str:
        """Say why a trip ended with ``error``."""

    def hold(self, nbytes: int) -> contextlib.AbstractContextManager[tuple[Any, str] | None]:
        """Hold such memory for copies: its address and a note; None where the CPU cannot reach it."""


class PagesWay:
    """Pages got by malloc, mmap and what can be asked of them."""

    device = buffer_type = ""
    writable = True

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked = "locked pages" if kind == "locked" else kind

    def trip(self, nbytes: int, cost: Any) -> int:
        """See `Way`."""
        return int(lib.kit_cost_pages(WAYS[self.kind], nbytes, cost))

    def outcome(self, nbytes: int, cost: Any) -> tuple[str, str]:
        """See `Way`; the number of page faults betrays huge pages that were promised and not given."""
        note = fallback_note(cost.lock_error, cost.advice_error, nbytes)
        if (
            not note
            and self.kind == "huge pages"
            and nbytes >= _HUGE_PAGE
            and cost.faults > nbytes // mmap.PAGESIZE // 2
        ):
            note = f"the kernel gave ordinary pages ({cost.faults} faults); see /sys/kernel/mm/transparent_hugepage"
        return ("ordinary pages" if note else self.asked), note

    def refusal(self, error: int) -> str:
        """See `Way`."""
        hint = "; none are reserved, see /proc/sys/vm/nr_hugepages" if self.kind == "reserved huge pages" else ""
        return error_text(error) + hint

    @contextlib.contextmanager
    def hold(self, nbytes: int) -> Iterator[tuple[Any, str] | None]:
        """See `Way`."""
        with Pages(nbytes, self.kind, name="source of copies", owner=_OWNER) as pages:
            pages.touch()
            yield pages.base, pages.note


class BufferWay:
    """A ggml buffer type: the CPU's, a device's own, or a device's for the host."""

    def __init__(self, kind: str, device: str, buffer_type: Any) -> None:
        self.kind = kind
        self.device = device
        self.writable = bool(lib.ggml_backend_buft_is_host(buffer_type))
        self.buffer_type = self.asked = text(lib.ggml_backend_buft_name(buffer_type))
        self._type = buffer_type

    def trip(self, nbytes: int, cost: Any) -> int:
        """See `Way`."""
        return int(lib.kit_cost_buffer(self._type, nbytes, cost))

    def outcome(self, nbytes: int, cost: Any) -> tuple[str, str]:
        """See `Way`."""
        got = text(cost.name)
        return got, name_note(self.asked, got)

    def refusal(self, error: int) -> str:
        """See `Way`."""
        return error_text(error)

    @contextlib.contextmanager
    def hold(self, nbytes: int) -> Iterator[tuple[Any, str] | None]:
        """See `Way`."""
        name = "source of copies"
        with Buffer.allocate(self._type, nbytes, purpose="staging", owner=_OWNER, name=name) as buffer:
            if not buffer.is_host:
                yield None
                return
            base = ffi.cast("void *", buffer.base)
            lib.kit_pages_touch(base, nbytes)
            yield base, name_note(self.asked, buffer.buffer_type)


class PooledWay:
    """A ggml buffer over a part of a region that was locked once; the region lives as long as `opened` does."""

    kind = "pooled"
    device = buffer_type = ""
    writable = True
    asked = "locked pages"

    def __init__(self) -> None:
        self._region: Pages | None = None

    @contextlib.contextmanager
    def opened(self, nbytes: int) -> Iterator[PooledWay]:
        """Take and fill the region; its own cost is that of ``locked``, paid once and not counted in a trip."""
        with Pages(nbytes, "locked", name="region of a pool", owner=_OWNER) as region:
            region.touch()
            self._region = region
            try:
                yield self
            finally:
                self._region = None

    def trip(self, nbytes: int, cost: Any) -> int:
        """See `Way`."""
        assert self._region is not None, "inside opened() only"
        return int(lib.kit_cost_pooled(self._region.base, nbytes, cost))

    def outcome(self, nbytes: int, cost: Any) -> tuple[str, str]:
        """See `Way`."""
        assert self._region is not None, "inside opened() only"
        return ("ordinary pages" if self._region.note else self.asked), self._region.note

    def refusal(self, error: int) -> str:
        """See `Way`."""
        return error_text(error)

    @contextlib.contextmanager
    def hold(self, nbytes: int) -> Iterator[tuple[Any, str] | None]:
        """See `Way`."""
        assert self._region is not None, "inside opened() only"
        yield self._region.base, self._region.note


def all_ways(devices: list[str]) -> list[Way]:
    """Return every way but the pooled one, in the order of the tables."""
    ways: list[Way] = [PagesWay(kind) for kind in WAYS]
    ways.append(BufferWay("ggml CPU", "", lib.ggml_backend_cpu_buffer_type()))
    for name in devices:
        host = host_type(name)
        if host is not None:
            ways.append(BufferWay("host buffer", name, host))
        if not reads_in_place(name):
            ways.append(BufferWay("device buffer", name, lib.ggml_backend_dev_buffer_type(device_handle(name))))
    return ways


def host_type(device: str) -> Any | None:
    """Return the buffer type in which ``device`` pins host memory, or None where it has none; raises ArgumentError."""
    found = lib.ggml_backend_dev_host_buffer_type(device_handle(device))
    return None if found == ffi.NULL else found


def reads_in_place(device: str) -> bool:
    """Whether tensors of ``device`` lie in host memory: the CPU's, and of helpers of the CPU such as BLAS."""
    return bool(lib.ggml_backend_buft_is_host(lib.ggml_backend_dev_buffer_type(device_handle(device))))
