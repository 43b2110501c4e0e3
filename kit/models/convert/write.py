"""Writing a converted file: rows are read and converted by several threads, written in order, never half there.

1. The caller's thread opens a temporary file beside the target and writes the header.
2. Worker threads read a slab of rows, convert it with ggml (without Python's lock), return its bytes.
3. The caller's thread writes them in order, a few slabs ahead at most, so memory stays bounded.
4. The file is synced and renamed to the target. An error or interrupt at any point removes it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kit.core.dtypes import from_array
from kit.core.native import ffi, lib
from kit.errors import ConversionError
from kit.models.convert.plan import PlannedTensor, Slab
from kit.models.files.replace import replacing
from kit.progress import byte_bar
from kit.units import bytes_text

ALIGNMENT = 32
MAX_WORKERS = 8

WriteHeader = Callable[[Path], None]
"""Writes everything before the tensor data to a path."""


def default_threads() -> int:
    """Return how many threads convert at once."""
    return min(MAX_WORKERS, os.cpu_count() or 1)


def padding(position: int, alignment: int = ALIGNMENT) -> int:
    """Return how many bytes lie between ``position`` and the next multiple of ``alignment``."""
    return -position % alignment


def write(
    target: Path,
    write_header: WriteHeader,
    tensors: Sequence[PlannedTensor],
    *,
    progress: bool,
    n_threads: int | None = None,
    alignment: int = ALIGNMENT,
) -> None:
    """Write a GGUF file: the header, then ``tensors`` in order, each at a multiple of ``alignment``.

    Raises ConversionError where reading, converting or writing fails; there is no ``target`` then, or the old one.
    """
    needed = sum(tensor.nbytes for tensor in tensors)
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise ConversionError(f"{target} needs {bytes_text(needed)}, its disk has {bytes_text(free)} free")
    with (
        replacing(target, ConversionError) as file,
        byte_bar(target.name, needed, shown=progress) as bar,
    ):
        try:
            write_header(Path(file.name))
            file.seek(0, os.SEEK_END)
            file.write(bytes(padding(file.tell(), alignment)))
            with contextlib.closing(_converted(tensors, n_threads or default_threads())) as parts:
                for data, ends_tensor in parts:
                    file.write(data)
                    bar.update(len(data))
                    if ends_tensor:
                        file.write(bytes(padding(file.tell(), alignment)))
        except OSError as error:
            raise ConversionError(f"{target}: writing failed: {error.strerror}") from error


def _converted(tensors: Sequence[PlannedTensor], n_workers: int) -> Generator[tuple[memoryview, bool], None, None]:
    """Yield the bytes of all slabs in order, and whether a slab is the last of its tensor."""
    ahead: collections.deque[tuple[Future[memoryview], bool]] = collections.deque()
    for dtype in {tensor.dtype.id for tensor in tensors}:
        lib.ggml_quantize_init(dtype)
    with ThreadPoolExecutor(n_workers, thread_name_prefix="kit-convert") as pool:
        try:
            for tensor in tensors:
                slabs = list(tensor.slabs())
                for number, slab in enumerate(slabs, 1):
                    if len(ahead) >= 2 * n_workers:
                        future, ends = ahead.popleft()
                        yield future.result(), ends
                    ahead.append((pool.submit(_convert, slab), number == len(slabs)))
            while ahead:
                future, ends = ahead.popleft()
                yield future.result(), ends
        finally:
            for future, _ in ahead:
                future.cancel()


def _convert(slab: Slab) -> memoryview:
    """Return the bytes of a slab in its tensor's type; runs on a worker thread."""
    tensor, source, row = slab.tensor, slab.piece.source, slab.piece.first_row + slab.first
    if tensor.copied:
        data = np.frombuffer(source.raw(row, slab.count), np.uint8)
    else:
        values = slab.piece.floats(slab.first, slab.count)
        if not np.isfinite(values).all():
            bad = row + int(np.argmin(np.isfinite(values).all(1)))
            raise ConversionError(f"{source.where(bad)}: the row holds values that are no finite numbers")
        data = from_array(values, tensor.dtype, values.shape, tensor.name)
    if not lib.ggml_validate_row_data(tensor.dtype.id, ffi.from_buffer(data), data.nbytes):
        raise ConversionError(
            f"{source.where(row)}: values too large for {tensor.dtype.name}; convert to bf16 or f32 instead"
        )
    return data.data
