"""Where things lie in one GGUF file: the checked header as plain data, and bytes read on demand.

Nothing here stays open: ggml's reader is freed as soon as its tables are copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import math
import os
import pathlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib, text
from kit.errors import ClosedError, GGUFError, GGUFNotFound

_FIRST_ROOM = 1024  # keys and tensors that fit at the first try; nearly all files


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One tensor of a GGUF file: where it lies and what it is; never its data.

    ``ne`` is in ggml order, fastest first, ``shape`` the same in numpy order, both with as many dimensions as
    the file writes. ``dtype`` is ggml's name of the type (``"q4_1"``). ``offset`` is absolute in the file ``path``,
    which is number ``part`` (from 1) of those the model was split into.
    """

    name: str
    ne: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int
    path: pathlib.Path
    part: int = 1

    @property
    def n_elements(self) -> int:
        """The product of the shape."""
        return math.prod(self.ne)


class TypeShare(NamedTuple):
    """What the tensors of one type add up to in a file."""

    n_tensors: int
    nbytes: int


def type_shares(infos: Iterable[TensorInfo]) -> dict[str, TypeShare]:
    """Return, by tensor type, how many tensors and bytes it has; most bytes first."""
    shares: dict[str, TypeShare] = {}
    for info in infos:
        count, nbytes = shares.get(info.dtype, (0, 0))
        shares[info.dtype] = TypeShare(count + 1, nbytes + info.nbytes)
    return dict(sorted(shares.items(), key=lambda item: -item[1].nbytes))


@dataclasses.dataclass(frozen=True)
class ValueSpot:
    """Where one metadata value lies: ``type`` is an enum gguf_type, for an array that of its elements."""

    offset: int
    nbytes: int
    count: int
    is_array: bool
    type: int


@dataclasses.dataclass(frozen=True)
class Header:
    """All that the header of a GGUF file says, but for the values of the metadata."""

    version: int
    alignment: int
    data_offset: int
    nbytes: int
    spots: dict[str, ValueSpot]
    tensors: dict[str, TensorInfo]


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path that can be printed whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class Source:
    """The file behind a GGUFFile: opened for each read and closed again, or kept open within ``reading``.

    Every read first makes sure that it is still the file whose header was checked.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(os.fsdecode(path))
        self.closed = False
        self._lock = threading.Lock()
        self._file: io.FileIO | None = None  # an object, so that it is closed even where an interrupt cuts a finally
        self._readers = 0
        if "\0" in os.fspath(self.path):
            raise GGUFError(f"{path_text(self.path)!r}: no file name holds a NUL character")
        spots, n_dims = _check(self.path)
        facts = _stat(self.path)
        self.identity = _identity(facts)
        self.header = _read_tables(self.path, spots, n_dims, facts.st_size)
        if _identity(_stat(self.path)) != self.identity:
            raise GGUFError(f"{path_text(self.path)}: the file changed while it was opened; open it again")

    @contextlib.contextmanager
    def reading(self) -> Iterator[Source]:
        """Keep the file open until the block ends; may be nested and used by several threads."""
        counted = False
        try:
            with uninterrupted, self._lock:
                self.require_open()
                if self._readers == 0:
                    self._file = self._open()
                self._readers += 1
                counted = True
            yield self
        finally:
            if counted:
                self._leave()

    def _leave(self) -> None:
        with uninterrupted, self._lock:
            self._readers -= 1
            if self._readers == 0 and self._file is not None:
                self._file.close()
                self._file = None

    def read(self, offset: int, nbytes: int, what: str) -> bytes:
        """Return exactly ``nbytes`` bytes from ``offset``; ``what`` names them in a GGUFError."""
        with self.reading():
            assert self._file is not None
            descriptor, parts, at = self._file.fileno(), [], offset
            while at < offset + nbytes:
                try:
                    part = os.pread(descriptor, offset + nbytes - at, at)
                except OSError as error:
                    raise GGUFError(
                        f"{path_text(self.path)}: {what} at byte {at}: reading failed: {error.strerror}"
                    ) from error
                if not part:
                    raise GGUFError(
                        f"{path_text(self.path)}: {what} at byte {offset}: {nbytes} bytes expected, "
                        f"{at - offset} found; the file became shorter after it was opened"
                    )
                parts.append(part)
                at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def require_open(self) -> None:
        """Raise ClosedError after close()."""
        if self.closed:
            raise ClosedError(f"{path_text(self.path)}: this GGUFFile is closed; open it again with GGUFFile(path)")

    def _open(self) -> io.FileIO:
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - `reading` closes it
        except OSError as error:
            raise _system_error(self.path, error.errno or 0, str(error.strerror)) from error
        if _identity(os.fstat(file.fileno())) != self.identity:
            file.close()
            raise GGUFError(
                f"{path_text(self.path)}: this is another file than the one that was opened, or it was "
                "written to since; open it again with GGUFFile(path)"
            )
        return file


def _stat(path: pathlib.Path) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise _system_error(path, error.errno or 0, str(error.strerror)) from error


def _identity(facts: os.stat_result) -> tuple[int, int, int, int]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _check(path: pathlib.Path) -> tuple[list[ValueSpot], list[int]]:
    """Return the spots of the values and the dimension counts of the tensors, by kit_gguf_check."""
    problem = ffi.new("kit_gguf_problem *")
    index = ffi.new("kit_gguf_index *")
    room = (_FIRST_ROOM, _FIRST_ROOM)
    while True:
        values, n_dims = ffi.new("kit_gguf_value[]", room[0]), ffi.new("uint32_t[]", room[1])
        index.values, index.value_room = values, room[0]
        index.n_dims, index.tensor_room = n_dims, room[1]
        if lib.kit_gguf_check(os.fsencode(path), index, problem) != 0:
            raise _as_error(path, problem)
        if index.n_values <= room[0] and index.n_tensors <= room[1]:
            break
        room = (max(room[0], index.n_values), max(room[1], index.n_tensors))
    spots = [
        ValueSpot(value.offset, value.nbytes, value.count, bool(value.is_array), value.type)
        for value in values[0 : index.n_values]
    ]
    return spots, list(n_dims[0 : index.n_tensors])


def _as_error(path: pathlib.Path, problem: Any) -> GGUFError:
    reason = text(problem.text)
    if problem.code == lib.KIT_GGUF_SYSTEM and problem.kind == lib.KIT_GGUF_FILE and problem.offset == 0:
        return _system_error(path, problem.found, reason)
    if problem.code == lib.KIT_GGUF_NOT_A_FILE:
        return GGUFError(f"{path_text(path)}: {reason}")
    if problem.kind == lib.KIT_GGUF_FILE:
        return GGUFError(f"{path_text(path)}: at byte {problem.offset}: {reason}")
    noun = "key" if problem.kind == lib.KIT_GGUF_KEY else "tensor"
    name = f" {text(problem.subject)!r}" if problem.subject[0] != b"\0" else ""
    return GGUFError(f"{path_text(path)}: {noun} {problem.number}{name}, at byte {problem.offset}: {reason}")


def _system_error(path: pathlib.Path, number: int, reason: str) -> GGUFError:
    if number in (errno.ENOENT, errno.ENOTDIR):
        missing = GGUFNotFound(f"{path_text(path)}: there is no such file")
        missing.errno = number
        return missing
    return GGUFError(f"{path_text(path)}: the file cannot be opened: {reason}")


def _read_tables(path: pathlib.Path, spots: list[ValueSpot], n_dims: list[int], nbytes: int) -> Header:
    """Let ggml's own reader read the checked header, copy its tables, free it."""
    tensors = ffi.new("struct ggml_context **")
    gguf = lib.gguf_init_from_file(os.fsencode(path), {"no_alloc": True, "ctx": tensors})
    if gguf == ffi.NULL:
        raise GGUFError(f"{path_text(path)}: ggml's reader refused the file, see its log; did it change just now?")
    try:
        if lib.gguf_get_n_kv(gguf) != len(spots) or lib.gguf_get_n_tensors(gguf) != len(n_dims):
            raise GGUFError(f"{path_text(path)}: the file changed while it was opened; open it again")
        data_offset = lib.gguf_get_data_offset(gguf)
        keys = [text(lib.gguf_get_key(gguf, i)) for i in range(len(spots))]
        infos, tensor = [], lib.ggml_get_first_tensor(tensors[0])
        for number, n in enumerate(n_dims):
            offset = data_offset + lib.gguf_get_tensor_offset(gguf, number)
            infos.append(_tensor_info(path, tensor, n, offset))
            tensor = lib.ggml_get_next_tensor(tensors[0], tensor)
        return Header(
            version=lib.gguf_get_version(gguf),
            alignment=lib.gguf_get_alignment(gguf),
            data_offset=data_offset,
            nbytes=nbytes,
            spots=dict(zip(keys, spots, strict=True)),
            tensors={info.name: info for info in infos},
        )
    finally:
        lib.gguf_free(gguf)
        lib.ggml_free(tensors[0])


def _tensor_info(path: pathlib.Path, tensor: Any, n_dims: int, offset: int) -> TensorInfo:
    ne = tuple(int(extent) for extent in tensor.ne[0:n_dims])
    return TensorInfo(
        name=text(tensor.name),
        ne=ne,
        shape=ne[::-1],
        dtype=text(lib.ggml_type_name(tensor.type)),
        offset=offset,
        nbytes=lib.ggml_nbytes(tensor),
        path=path,
    )
