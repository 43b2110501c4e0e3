"""Buffers: memory that tensors' data lives in, apart from the tensors."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from kit.core import ledger
from kit.core.compute import refuse_running, turn
from kit.core.devices import available_memory
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib, text
from kit.errors import ArgumentError, ClosedError, OutOfMemory
from kit.log import log
from kit.units import bytes_text


class Buffer:
    """One ggml buffer. ``close()`` frees it; tensors placed in it are unreadable from then on."""

    def __init__(
        self, handle: Any, *, purpose: str, owner: str, name: str, holds: object = None, borrowed: bool = False
    ) -> None:
        self.nbytes = int(lib.ggml_backend_buffer_get_size(handle))
        self.buffer_type = text(lib.ggml_backend_buffer_name(handle))
        self.purpose = purpose
        self.owner = owner
        self.name = name
        self.holds = holds  # memory that must outlive the buffer
        own = 0 if borrowed else self.nbytes  # a mapping, or the application, accounts for borrowed memory
        address = int(ffi.cast("uintptr_t", handle))
        entry = ledger.Resource("buffer", own, name, owner, purpose, self.buffer_type, address=address)
        self._handle = handle
        self._pins = 0
        self._unwanted = False
        self._finalizer = weakref.finalize(self, _free, handle, ledger.opened(entry), holds)

    @classmethod
    def allocate(cls, buffer_type: Any, nbytes: int, *, purpose: str, owner: str, name: str) -> Buffer:
        """Allocate ``nbytes`` of ggml's ``buffer_type``.

        Raises:
            OutOfMemory: the device has no such room; nothing is left behind.
        """
        wanted = text(lib.ggml_backend_buft_name(buffer_type))
        refuse_impossible(nbytes, wanted, f"{name} ({purpose} of {owner})", lib.ggml_backend_buft_is_host(buffer_type))
        with uninterrupted:
            handle = lib.ggml_backend_buft_alloc_buffer(buffer_type, nbytes)
            if handle == ffi.NULL:
                raise OutOfMemory(
                    f"{wanted} could not give {bytes_text(nbytes)} for {name} ({purpose} of {owner})",
                    nbytes=nbytes,
                    device=wanted,
                )
            buffer = cls(handle, purpose=purpose, owner=owner, name=name)
        if buffer.buffer_type != wanted and nbytes:
            log.warning("asked %s for memory, got %s", wanted, buffer.buffer_type, extra={"nbytes": nbytes})
        return buffer

    @classmethod
    def over(cls, memory: npt.NDArray[Any] | memoryview | bytearray, *, name: str = "own memory") -> Buffer:
        """Wrap an application's own writable memory, which stays its property, as a CPU buffer.

        Raises:
            ArgumentError: memory that is read-only, not contiguous, or not aligned as ggml needs it.
        """
        view = memoryview(cast(Any, memory))
        if view.readonly or not view.c_contiguous:
            raise ArgumentError(f"{name}: a buffer needs writable, contiguous memory")
        pointer = ffi.from_buffer("char[]", view, require_writable=True)
        address = int(ffi.cast("uintptr_t", pointer))
        alignment = int(lib.ggml_backend_buft_get_alignment(lib.ggml_backend_cpu_buffer_type()))
        if address % alignment:
            raise ArgumentError(
                f"{name}: starts {address % alignment} bytes past a multiple of {alignment}; use aligned()"
            )
        with uninterrupted:
            handle = lib.ggml_backend_cpu_buffer_from_ptr(pointer, view.nbytes)
            return cls(handle, purpose="inputs", owner="application", name=name, holds=(view, pointer), borrowed=True)

    @property
    def handle(self) -> Any:
        """ggml's pointer.

        Raises:
            ClosedError: after `close`.
        """
        if not self._finalizer.alive:
            raise ClosedError(f"buffer {self.name!r} was closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the memory has been given back."""
        return not self._finalizer.alive

    @property
    def base(self) -> int:
        """Address of the first byte."""
        return int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_base(self.handle)))

    @property
    def is_host(self) -> bool:
        """Whether the CPU can read the bytes in place."""
        return bool(lib.ggml_backend_buffer_is_host(self.handle))

    def clear(self) -> None:
        """Set every byte to zero."""
        lib.ggml_backend_buffer_clear(self.handle, 0)

    def close(self) -> None:
        """Give the memory back; a second call does nothing. While `held` it waits for the end of that.

        Raises:
            BusyError: called by a computation that uses the memory.
        """
        with turn(), uninterrupted:
            refuse_running(lambda graph: graph.uses_buffer(self), f"buffer {self.name!r}")
            self._unwanted = True
            if not self._pins:
                self._finalizer()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the memory for a while, although somebody may close the buffer meanwhile: readers write into it."""
        with turn():
            self._pins += 1
        try:
            yield
        finally:
            with turn():
                self._pins -= 1
                if self._unwanted and not self._pins:
                    self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{bytes_text(self.nbytes)} of {self.buffer_type}"
        return f"Buffer({self.name!r}, {state}, {self.purpose} of {self.owner})"


class BufferSet:
    """What a context leaves behind when it is detached: buffers without their tensors' metadata."""

    def __init__(self, buffers: list[Buffer], owner: str) -> None:
        self._buffers = buffers
        self.owner = owner

    @property
    def nbytes(self) -> int:
        """Bytes still held."""
        return sum(buffer.nbytes for buffer in self._buffers if not buffer.closed)

    def close(self) -> None:
        """Give all the memory back."""
        for buffer in self._buffers:
            buffer.close()

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BufferSet({len(self._buffers)} buffers of {self.owner}, {bytes_text(self.nbytes)})"


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return ``nbytes`` of zeroed memory aligned for `Buffer.over`."""
    alignment = int(lib.ggml_backend_buft_get_alignment(lib.ggml_backend_cpu_buffer_type()))
    memory = np.zeros(nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes]


def refuse_impossible(nbytes: int, where: str, what: str, host: bool) -> None:
    """Raise OutOfMemory for host memory this machine does not have: Linux would promise it and kill later."""
    available = available_memory()[0]
    if host and available and nbytes > available:
        raise OutOfMemory(
            f"{what} needs {bytes_text(nbytes)} of {where}, {bytes_text(available)} are available; make it smaller",
            nbytes=nbytes,
            device=where,
        )


def _free(handle: Any, number: int, holds: object) -> None:
    with uninterrupted:
        lib.ggml_backend_buffer_free(handle)
        ledger.closed(number)
