"""Weights: tensors over a mapped file, or read into a buffer by several readers; never through Python."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tqdm.auto import tqdm

from kit.core import ledger
from kit.core.backend import Backend
from kit.core.buffer import Buffer
from kit.core.context import Context
from kit.core.gguf import GGUFFile, TensorInfo
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib
from kit.core.tensor import Tensor
from kit.errors import GGUFError, GGUFNotFound
from kit.units import bytes_text

CHUNK = 4 << 20
MAX_READERS = 4


class Weights(Mapping[str, Tensor]):
    """A file's tensors by name, allocated and filled. ``close()`` frees them and unmaps the file.

    Args:
        file: an open GGUFFile whose tensors were checked.
        backend: whose CPU device holds them.
        use_mmap: map the file instead of reading it: no copy, pages come when they are used.
        progress: show a bar while reading.

    Raises:
        OutOfMemory: no room. GGUFError: a read failed; names tensor, offset and the system's reason.
    """

    def __init__(self, file: GGUFFile, backend: Backend, *, use_mmap: bool = True, progress: bool = True) -> None:
        self.path = file.path
        self.context = Context(backend, name=f"weights of {file.path.name}", slots=len(file.tensors) + 1)
        self._mapping: _Mapping | None = None
        try:
            self._tensors = {info.name: self._declare(info) for info in file.tensors.values()}
            self.mapped = use_mmap and all(info.offset % _alignment() == 0 for info in file.tensors.values())
            if self.mapped:
                self._map(file)
            else:
                self._read(file, progress)
            self._mark_ready()
        except BaseException:
            self.close()
            raise

    def _declare(self, info: TensorInfo) -> Tensor:
        return self.context.tensor(info.shape, info.dtype, name=info.name)

    def _map(self, file: GGUFFile) -> None:
        with uninterrupted:
            self._mapping = _Mapping(file)
        for info in file.tensors.values():
            self.context.place(self._tensors[info.name], self._mapping.buffer, info.offset)

    def _read(self, file: GGUFFile, progress: bool) -> None:
        self.context.allocate()
        parts = [part for info in file.tensors.values() for part in _parts(info, self._tensors[info.name])]
        with contextlib.ExitStack() as writing:
            for buffer in self.context.buffers:
                writing.enter_context(buffer.held())
            _read_all(file, parts, progress)

    def _mark_ready(self) -> None:
        for tensor in self._tensors.values():
            tensor.core.ready.add(tensor.address)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Free the tensors' metadata, then their memory."""
        with uninterrupted:
            self.context.close()
            if self._mapping is not None:
                self._mapping.close()

    def __repr__(self) -> str:
        if self.context.closed:
            return f"Weights({self.path.name!r}, closed)"
        how = "mapped" if self.mapped else "in memory"
        return f"Weights({self.path.name!r}, {len(self)} tensors, {bytes_text(self.nbytes)} {how})"


class _Mapping:
    """A file mapped read-only, and the CPU buffer over it."""

    def __init__(self, file: GGUFFile) -> None:
        with _opened(file.path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size < file.nbytes:
                raise GGUFError(f"{file.path} shrank from {file.nbytes} to {size} bytes since it was opened")
            try:
                mapped = mmap.mmap(handle.fileno(), file.nbytes, access=mmap.ACCESS_READ)
            except OSError as error:
                raise GGUFError(f"{file.path} cannot be mapped: {error.strerror}; use_mmap=False reads it") from error
        view = memoryview(mapped)
        pointer = ffi.from_buffer("char[]", view)
        name = file.path.name
        handle_ = lib.ggml_backend_cpu_buffer_from_ptr(ffi.cast("void *", pointer), file.nbytes)
        lib.ggml_backend_buffer_set_usage(handle_, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        address = int(ffi.cast("uintptr_t", pointer))
        entry = ledger.Resource("mapping", file.nbytes, name, "weights", "weights", "mapped file", address=address)
        number = ledger.opened(entry)
        self.buffer = Buffer(
            handle_,
            purpose="weights",
            owner="weights",
            name=f"over the mapping of {name}",
            holds=pointer,
            borrowed=True,
        )
        self._finalizer = weakref.finalize(self, _unmap, self.buffer, number, view, mapped)

    def close(self) -> None:
        self._finalizer()


def _unmap(buffer: Buffer, number: int, view: memoryview, mapped: mmap.mmap) -> None:
    buffer.close()
    buffer.holds = None
    ledger.closed(number)
    view.release()
    mapped.close()


@dataclass(frozen=True)
class _Part:
    """A stretch of one tensor, small enough to read between two looks at the stop flag."""

    name: str
    offset: int
    nbytes: int
    address: int


def _parts(info: TensorInfo, tensor: Tensor) -> Iterator[_Part]:
    base = int(ffi.cast("uintptr_t", tensor.p.data))
    for start in range(0, info.nbytes, CHUNK):
        yield _Part(info.name, info.offset + start, min(CHUNK, info.nbytes - start), base + start)


class _Gate:
    """Readers write to the buffer only inside; once `shut` returns, nobody is and nobody will be.

    Waiting for the pool's threads is not enough: an interrupt while the pool starts one loses sight of it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    def enter(self) -> bool:
        with self._changed:
            if not self._shut:
                self._inside += 1
            return not self._shut

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self) -> None:
        self._shut = True
        interrupted: KeyboardInterrupt | None = None
        while True:
            try:
                with self._changed:
                    self._changed.wait_for(lambda: self._inside == 0)
                break
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


def _read_all(file: GGUFFile, parts: list[_Part], progress: bool) -> None:
    """Read ``parts`` with a few readers, each with a file descriptor and one stretch of the file of its own."""
    readers = max(1, min(MAX_READERS, os.cpu_count() or 1, len(parts)))
    gate = _Gate()
    share = -(-len(parts) // readers)
    with (
        ThreadPoolExecutor(readers, thread_name_prefix="kit-read") as pool,
        tqdm(
            total=sum(p.nbytes for p in parts), unit="B", unit_scale=True, desc=file.path.name, disable=not progress
        ) as bar,
    ):
        lock = threading.Lock()

        def advance(nbytes: int) -> None:
            with lock:
                bar.update(nbytes)

        try:
            _wait(
                [
                    pool.submit(_read_share, file.path, parts[i : i + share], gate, advance)
                    for i in range(0, len(parts), share)
                ]
            )
        finally:
            gate.shut()


def _wait(futures: list[Future[None]]) -> None:
    pending: set[Future[None]] = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.1, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


def _read_share(path: Path, parts: list[_Part], gate: _Gate, advance: Callable[[int], None]) -> None:
    with _opened(path) as handle:
        for part in parts:
            if not gate.enter():
                return
            try:
                _read_part(path, handle.fileno(), part)
            finally:
                gate.leave()
            advance(part.nbytes)


def _opened(path: Path) -> FileIO:
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError as error:
        raise GGUFNotFound(f"{path}: the file has gone since its header was read") from error
    except OSError as error:
        raise GGUFError(f"{path}: the file cannot be opened: {error.strerror}") from error


def _read_part(path: Path, descriptor: int, part: _Part) -> None:
    target = memoryview(ffi.buffer(ffi.cast("char *", part.address), part.nbytes))
    done = 0
    while done < part.nbytes:
        where = part.offset + done
        try:
            got = os.preadv(descriptor, [target[done:]], where)
        except OSError as error:
            raise GGUFError(f"{path}: reading tensor {part.name!r} at byte {where}: {error.strerror}") from error
        if got == 0:
            raise GGUFError(f"{path}: the file ends at byte {where}, inside tensor {part.name!r}")
        done += got


def _alignment() -> int:
    return int(lib.ggml_backend_buft_get_alignment(lib.ggml_backend_cpu_buffer_type()))
