"""Tensor data from files into memory by several readers, each with a file descriptor and a section of its own.

Trip of one load:
1. the thread that loads cuts the files into chunks and gives each reader a run of them (kit.models.weights.sections);
2. each reader, on a thread of its own, opens the file and reads its chunks from front to back, straight to where
   the tensors live;
3. a reader that fails notes the error and shuts the gate: the others stop before their next chunk;
4. the thread that loads waits until nobody writes any more, then raises the first real error
   (kit.models.weights.failures).
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from io import FileIO

from kit.core.gguf import GGUFPart
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi
from kit.errors import GGUFError, GGUFNotFound, GGUFReadError
from kit.models.weights.failures import Failures
from kit.models.weights.read_trace import Read, ReaderTrace, ReadTrace
from kit.models.weights.sections import Chunk, Piece, shares
from kit.progress import byte_bar


class _Gate:
    """Readers write to the buffer only inside; once `shut` returns, nobody is and nobody will be.

    Waiting for the pool's threads is not enough: an interrupt while the pool starts one loses sight of it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closing = False

    def enter(self) -> bool:
        with self._changed:
            if not self._closing:
                self._inside += 1
            return not self._closing

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more; do not wait for those inside."""
        self._closing = True

    def shut(self) -> None:
        self.close()
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


def read_all(work: list[Chunk], n_readers: int, *, title: str, progress: bool) -> ReadTrace:
    """Read every chunk to its addresses with at most ``n_readers`` readers; return what they did.

    Raises:
        GGUFReadError: a read failed or the file ended; names file, tensor, byte and the system's reason.
        GGUFError: a file cannot be opened, or is not the one whose header was read.
    """
    parts = shares(work, n_readers)
    gate, failures = _Gate(), Failures()
    total = sum(chunk.nbytes for chunk in work)
    with uninterrupted:  # tqdm's one lock of the process would stay taken
        bar = byte_bar(title, total, shown=progress)
    try:
        readers = _run_readers(parts, bar.update, gate, failures)
    finally:
        with uninterrupted:
            bar.close()
    failures.raise_first()
    return ReadTrace(tuple(ReaderTrace(reader.number, tuple(reader.reads)) for reader in readers))


def _run_readers(
    parts: list[list[Chunk]], update: Callable[[int], object], gate: _Gate, failures: Failures
) -> list[_Reader]:
    """Let a reader go through each part; when this ends, however it does, none of them writes any more."""
    lock = threading.Lock()

    def advance(nbytes: int) -> None:
        with lock:
            update(nbytes)

    origin_ns = time.perf_counter_ns()
    readers = [_Reader(i, share, gate, failures, advance, origin_ns) for i, share in enumerate(parts, 1)]
    with ThreadPoolExecutor(len(parts) or 1, thread_name_prefix="kit-read") as pool:
        try:
            pending = {pool.submit(reader.run) for reader in readers}
            while pending:
                _, pending = wait(pending, timeout=0.1)
        except BaseException as error:
            failures.annotate(error)
            raise
        finally:
            gate.shut()
    return readers


class _Reader:
    """Reads its chunks in order; ``run`` raises nothing, it notes."""

    def __init__(
        self,
        number: int,
        share: list[Chunk],
        gate: _Gate,
        failures: Failures,
        advance: Callable[[int], None],
        origin_ns: int,
    ) -> None:
        self.number = number
        self.reads: list[Read] = []
        self._share, self._gate, self._failures = share, gate, failures
        self._advance, self._origin_ns = advance, origin_ns
        self._file: FileIO | None = None
        self._part: GGUFPart | None = None

    def run(self) -> None:
        try:
            for chunk in self._share:
                if not self._gate.enter():
                    return
                try:
                    self._read(chunk)
                finally:
                    self._gate.leave()
                self._advance(chunk.nbytes)
        except BaseException as error:  # whatever it is, it must not be lost with the thread
            self._failures.add(self.number, error)
            self._gate.close()
        finally:
            self._close()

    def _read(self, chunk: Chunk) -> None:
        if self._part is not chunk.part:
            self._close()
            self._file, self._part = open_part(chunk.part, for_chunk=chunk), chunk.part
        assert self._file is not None
        start = time.perf_counter_ns()
        read_chunk(self._file.fileno(), chunk)
        end = time.perf_counter_ns()
        began, ended = start - self._origin_ns, end - self._origin_ns
        self.reads.append(Read(chunk.part.path, chunk.offset, chunk.nbytes, began, ended))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def open_part(part: GGUFPart, for_chunk: Chunk | None = None) -> FileIO:
    """Open a file of a model for reading, or mapping; what for is told where the system refuses.

    Raises:
        GGUFNotFound: it has gone. GGUFError: the system refuses, or it is not the file whose header was read.
    """
    try:
        file = open(part.path, "rb", buffering=0, opener=_open_at_once)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError as error:
        raise GGUFNotFound(f"{part.path}: the file has gone since its header was read") from error
    except OSError as error:
        if for_chunk is None:
            raise _refused(part, error, f"{part.path}: the file cannot be opened") from error
        tensor, offset = _tensor_at(for_chunk, for_chunk.offset), for_chunk.offset
        message = f"{part.path}: the file cannot be opened to read tensor {tensor!r} at byte {offset}"
        raise _refused(part, error, message, tensor=tensor, offset=offset) from error
    try:
        facts = os.fstat(file.fileno())
        if (facts.st_dev, facts.st_ino) != part.identity[:2] or not stat.S_ISREG(facts.st_mode):
            raise GGUFError(f"{part.path}: another file lies there than the one whose header was read; load it again")
        if facts.st_size >= part.nbytes and facts.st_mtime_ns != part.identity[3]:
            raise GGUFError(f"{part.path}: the file was written to since its header was read; load it again")
    except BaseException:
        file.close()
        raise
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe that took the file's place must not hold us up


def read_chunk(descriptor: int, chunk: Chunk) -> None:
    """Fill the chunk's pieces; short reads are taken up where they ended.

    Raises:
        GGUFReadError: the read failed or the file ended; with file, tensor, byte and errno.
    """
    left = [_target(piece) for piece in chunk.pieces]
    where = chunk.offset
    while left:
        try:
            got = os.preadv(descriptor, left, where)
        except OSError as error:
            name = _tensor_at(chunk, where)
            message = f"{chunk.part.path}: reading tensor {name!r} at byte {where}"
            raise _refused(chunk.part, error, message, tensor=name, offset=where) from error
        if got == 0:
            raise _ended(descriptor, chunk, where)
        where += got
        while left and got >= len(left[0]):
            got -= len(left.pop(0))
        if got:
            left[0] = left[0][got:]


def _target(piece: Piece) -> memoryview:
    if not piece.address:
        return memoryview(bytearray(piece.nbytes))
    return memoryview(ffi.buffer(ffi.cast("char *", piece.address), piece.nbytes))


def _tensor_at(chunk: Chunk, where: int) -> str:
    """Return the tensor that byte ``where`` belongs to, for padding the one after it."""
    end = chunk.offset
    for piece in chunk.pieces:
        end += piece.nbytes
        if where < end and piece.name:
            return piece.name
    return chunk.pieces[-1].name


def _ended(descriptor: int, chunk: Chunk, where: int) -> GGUFReadError:
    name = _tensor_at(chunk, where)
    size = min(os.fstat(descriptor).st_size, where)
    place = "inside" if size == where else "before"
    return GGUFReadError(
        f"{chunk.part.path}: the file ends at byte {size}, {place} tensor {name!r}; it had {chunk.part.nbytes} bytes "
        "when its header was read",
        path=chunk.part.path,
        tensor=name,
        offset=where,
    )


def _refused(part: GGUFPart, error: OSError, message: str, *, tensor: str = "", offset: int = 0) -> GGUFReadError:
    number = error.errno or 0
    code = f" ({errno.errorcode.get(number, 'errno')} {number})" if number else ""
    reason = error.strerror or str(error)
    return GGUFReadError(
        f"{message}: {reason}{code}", path=part.path, tensor=tensor, offset=offset, number=number or None
    )
