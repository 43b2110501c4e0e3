"""A file mapped read-only, and ggml's buffer over it."""

from __future__ import annotations

import mmap
import os
import weakref

from kit.core import ledger
from kit.core.buffer import Buffer
from kit.core.gguf import GGUFPart
from kit.core.native import ffi, lib
from kit.errors import GGUFError
from kit.models.weights.reading import open_part


class MappedFile:
    """One file of a model in memory as it lies on the disk; pages come when they are used.

    Raises:
        GGUFError: the file cannot be opened or mapped, or is not the one, or not as long as, its header was read from.
    """

    def __init__(self, part: GGUFPart) -> None:
        self.part = part
        mapped = _map(part)
        view = memoryview(mapped)
        pointer = ffi.from_buffer("char[]", view)
        name = part.path.name
        handle = lib.ggml_backend_cpu_buffer_from_ptr(ffi.cast("void *", pointer), part.nbytes)
        lib.ggml_backend_buffer_set_usage(handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        address = int(ffi.cast("uintptr_t", pointer))
        entry = ledger.Resource("mapping", part.nbytes, name, "weights", "weights", "mapped file", address=address)
        number = ledger.opened(entry)
        self.buffer = Buffer(
            handle,
            purpose="weights",
            owner="weights",
            name=f"over the mapping of {name}",
            holds=pointer,
            borrowed=True,
        )
        self._finalizer = weakref.finalize(self, _unmap, self.buffer, number, view, mapped)

    def shrank(self) -> str:
        """Return in words that the file is shorter now than what is mapped of it; empty where it is not."""
        try:
            size = os.stat(self.part.path).st_size
        except OSError:
            return ""
        return f"{self.part.path} shrank from {self.part.nbytes} to {size} bytes" if size < self.part.nbytes else ""

    def close(self) -> None:
        """Free the buffer and unmap the file; a second call does nothing."""
        self._finalizer()


def _map(part: GGUFPart) -> mmap.mmap:
    with open_part(part) as file:
        size = os.fstat(file.fileno()).st_size
        if size < part.nbytes:
            raise GGUFError(f"{part.path} shrank from {part.nbytes} to {size} bytes since it was opened")
        try:
            return mmap.mmap(file.fileno(), part.nbytes, access=mmap.ACCESS_READ)
        except ValueError as error:  # it shrank since the line above
            raise GGUFError(f"{part.path} became shorter than {part.nbytes} bytes while it was mapped") from error
        except OSError as error:
            raise GGUFError(f"{part.path} cannot be mapped: {error.strerror}; use_mmap=False reads it") from error


def _unmap(buffer: Buffer, number: int, view: memoryview, mapped: mmap.mmap) -> None:
    buffer.close()
    buffer.holds = None
    ledger.closed(number)
    view.release()
    mapped.close()
