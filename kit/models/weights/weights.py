"""Weights: tensors over mapped files, or read into a buffer by several readers; never through Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from kit.checks import whole
from kit.core.backend import Backend
from kit.core.context import Context
from kit.core.gguf import GGUFFile, TensorInfo
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib
from kit.core.tensor import Tensor
from kit.errors import GgmlAbort
from kit.models.weights import sections
from kit.models.weights.mapping import MappedFile
from kit.models.weights.read_trace import ReadTrace
from kit.models.weights.reading import read_all
from kit.units import bytes_text

READERS = 4
MAX_READERS = 64


class Weights(Mapping[str, Tensor]):
    """A model's tensors by name, allocated and filled. ``close()`` frees them and unmaps the files.

    Args:
        file: an open GGUFFile whose tensors were checked.
        backend: whose CPU device holds them.
        use_mmap: map the files instead of reading them: no copy, pages come when they are used.
        progress: show a bar while reading.
        readers: how many read at once where files are read, each with a section of its own; 1 to 64, default 4.

    ``trace`` says what each reader did, None where the files are mapped.

    Raises:
        ArgumentError: ``readers`` is out of range. OutOfMemory: no room.
        GGUFReadError: a read failed; names file, tensor, offset and the system's reason. Where several readers
            failed, the first real error, with the others as notes.
        GGUFError: a file has gone, shrunk, or is another one than when its header was read.
    """

    def __init__(
        self,
        file: GGUFFile,
        backend: Backend,
        *,
        use_mmap: bool = True,
        progress: bool = True,
        readers: int | None = None,
    ) -> None:
        n_readers = _check_readers(readers)
        self.path = file.path
        self.trace: ReadTrace | None = None
        self.context = Context(backend, name=f"weights of {file.path.name}", slots=len(file.tensors) + 1)
        self._mapped_files: list[MappedFile] = []
        try:
            self._tensors = {info.name: self._declare(info) for info in file.tensors.values()}
            self.mapped = use_mmap and all(info.offset % _alignment() == 0 for info in file.tensors.values())
            if self.mapped:
                self._map(file)
            else:
                self._read(file, n_readers, progress)
            self._mark_ready()
        except BaseException:
            self.close()
            raise

    def _declare(self, info: TensorInfo) -> Tensor:
        return self.context.tensor(info.shape, info.dtype, name=info.name)

    def _map(self, file: GGUFFile) -> None:
        over = {}
        for part in file.parts:
            if part.n_tensors:
                with uninterrupted:
                    over[part.number] = MappedFile(part)
                    self._mapped_files.append(over[part.number])
        for info in file.tensors.values():
            self.context.place(self._tensors[info.name], over[info.part].buffer, info.offset)

    def _read(self, file: GGUFFile, n_readers: int, progress: bool) -> None:
        self.context.allocate()
        work: list[sections.Chunk] = []
        for part in file.parts:
            infos = [info for info in file.tensors.values() if info.part == part.number]
            targets = ((info, _address(self._tensors[info.name])) for info in infos)
            work += sections.chunks(part, targets, sections.CHUNK_BYTES)
        with contextlib.ExitStack() as writing:
            for buffer in self.context.buffers:
                writing.enter_context(buffer.held())
            self.trace = read_all(work, n_readers, title=file.path.name, progress=progress)

    def _mark_ready(self) -> None:
        for tensor in self._tensors.values():
            tensor.core.ready.add(tensor.address)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def explained(self, error: GgmlAbort) -> GgmlAbort:
        """Return ``error`` with the mapped files that became shorter since they were opened, or as it is."""
        shrank = [said for mapped in self._mapped_files if (said := mapped.shrank())]
        return GgmlAbort(f"{error}; {', '.join(shrank)}: load the model again") if shrank else error

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
            for mapped in self._mapped_files:
                mapped.close()

    def __repr__(self) -> str:
        if self.context.closed:
            return f"Weights({self.path.name!r}, closed)"
        how = "mapped" if self.mapped else "in memory"
        return f"Weights({self.path.name!r}, {len(self)} tensors, {bytes_text(self.nbytes)} {how})"


def _check_readers(readers: int | None) -> int:
    if readers is None:
        return READERS
    return whole("readers", readers, 1, MAX_READERS)


def _address(tensor: Tensor) -> int:
    return int(ffi.cast("uintptr_t", tensor.p.data))


def _alignment() -> int:
    return int(lib.ggml_backend_buft_get_alignment(lib.ggml_backend_cpu_buffer_type()))
