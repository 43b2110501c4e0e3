"""Checkpoints in safetensors files: headers checked as untrusted, rows read by offset.

Layout of a file, from the safetensors format's own description: a little-endian 64-bit header length, the header
as JSON (name -> dtype, shape, data_offsets), then the data the offsets count from. A sharded checkpoint has
``model.safetensors.index.json``, whose ``weight_map`` says which file holds which tensor.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from kit.core.interrupts import uninterrupted
from kit.errors import ConversionError, ModelNotFound

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_LARGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors library
_WEIGHTS = ("F32", "F16", "BF16")
_ITEM_NBYTES = dict(zip(_WEIGHTS, (4, 2, 2), strict=True))
_ITEM_NBYTES |= {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_ITEM_NBYTES |= {"F8_E4M3": 1, "F8_E5M2": 1}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, seen as rows; a vector is rows of one. ``offset`` is absolute in ``path``."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    file: io.FileIO

    @property
    def n_columns(self) -> int:
        """The length of one row."""
        return self.shape[-1] if len(self.shape) > 1 else 1

    @property
    def n_rows(self) -> int:
        """How many rows all other dimensions make."""
        return prod(self.shape[:-1] if len(self.shape) > 1 else self.shape)

    def where(self, row: int = 0) -> str:
        """Name file, tensor and byte of a row, for a message."""
        return f"{self.path}: tensor {self.name!r} at byte {self.offset + row * self._row_nbytes}"

    @property
    def _row_nbytes(self) -> int:
        return self.n_columns * _ITEM_NBYTES[self.dtype]

    def rows(self, first: int, count: int) -> Floats:
        """Return rows as float32 (count, n_columns).

        Raises ConversionError where the file cannot be read or has become shorter; names file, tensor, offset.
        """
        raw = self.raw(first, count)
        if self.dtype == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4" if self.dtype == "F32" else "<f2").astype(np.float32)
        return values.reshape(count, self.n_columns)

    def raw(self, first: int, count: int) -> bytes:
        """Return the bytes of rows as the file has them; raises as ``rows``."""
        parts: list[bytes] = []
        done, nbytes, start = 0, count * self._row_nbytes, self.offset + first * self._row_nbytes
        while done < nbytes:
            try:
                part = os.pread(self.file.fileno(), nbytes - done, start + done)
            except OSError as error:
                raise ConversionError(f"{self.where(first)}: reading failed: {error.strerror}") from error
            if not part:
                raise ConversionError(
                    f"{self.where(first)}: {nbytes} bytes expected, {done} found; the file became shorter"
                )
            parts.append(part)
            done += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Checkpoint(Mapping[str, Entry]):
    """The tensors of a folder's safetensors files by name; keeps the files open until ``close()``.

    Raises:
        ModelNotFound: the folder, or a file its index names, is not there.
        ConversionError: a header or the index contradicts itself or its file; names file and tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._files = contextlib.ExitStack()
        self._entries: dict[str, Entry] = {}
        try:
            weight_map = _weight_map(folder)
            for name in sorted(set(weight_map.values())) if weight_map else [SINGLE]:
                for entry in self._open(folder / name):
                    if entry.name in self._entries:
                        first = self._entries[entry.name].path.name
                        raise ConversionError(f"{entry.path}: tensor {entry.name!r} is in {first} too")
                    self._entries[entry.name] = entry
            for tensor, name in weight_map.items():
                if tensor not in self._entries or self._entries[tensor].path.name != name:
                    raise ConversionError(f"{folder / INDEX}: tensor {tensor!r} is said to be in {name}, but is not")
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> list[Entry]:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ConversionError(f"{path} is not a regular file")
            with uninterrupted:
                file = self._files.enter_context(open(path, "rb", buffering=0))  # noqa: SIM115 - the stack closes it
        except FileNotFoundError:
            raise ModelNotFound(_missing(path)) from None
        except OSError as error:
            raise ConversionError(f"{path}: the file cannot be opened: {error.strerror}") from error
        return _entries(path, file)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_json(path: Path, largest: int = 64 << 20) -> Any:
    """Return what a JSON file of at most ``largest`` bytes holds, None where there is no such file.

    Raises ConversionError for a larger one, one that is no JSON, or one that holds null.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) or os.stat(path).st_size > largest:
            raise ConversionError(f"{path} is no regular file of at most {largest} bytes")
        found = json.loads(path.read_bytes())
        if found is None:
            raise ConversionError(f"{path} holds null, no table of fields")
        return found
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConversionError(f"{path}: reading failed: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConversionError):
            raise
        raise ConversionError(f"{path} is no JSON: {error}") from error


def _missing(path: Path) -> str:
    if path.name != SINGLE:
        return f"{path}: the checkpoint's index names this file, but it is not there; fetch it"
    return f"{path.parent} holds neither {SINGLE} nor {INDEX}; kit reads safetensors only, never pickles (.bin)"


def _weight_map(folder: Path) -> dict[str, str]:
    """Return file by tensor, empty where the checkpoint has no index."""
    index = read_json(folder / INDEX)
    if index is None:
        return {}
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or not found:
        raise ConversionError(f"{folder / INDEX} has no weight_map")
    for tensor, name in found.items():
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise ConversionError(f"{folder / INDEX}: {tensor!r} lies in {name!r}, which is no name of a file here")
    return found


def _entries(path: Path, file: io.FileIO) -> list[Entry]:
    """Check a file's header against its size; return what it describes."""
    size = os.fstat(file.fileno()).st_size
    head = os.pread(file.fileno(), 8, 0)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
        raise ConversionError(
            f"{path}: a header of {length} bytes in a file of {size}: no safetensors file, or cut off"
        )
    raw = os.pread(file.fileno(), length, 8)
    try:
        header = json.loads(raw, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path}: the header is broken: {error}") from error
    if not isinstance(header, dict):
        raise ConversionError(f"{path}: the header is no table of tensors")
    header.pop("__metadata__", None)
    start = 8 + length
    entries = [_entry(path, file, name, facts, start, size) for name, facts in header.items()]
    entries.sort(key=lambda entry: (entry.offset, _nbytes(entry.dtype, entry.shape)))
    for before, after in itertools.pairwise(entries):
        if before.offset + _nbytes(before.dtype, before.shape) > after.offset:
            raise ConversionError(f"{path}: tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}")
    return entries


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _entry(path: Path, file: io.FileIO, name: str, facts: Any, start: int, size: int) -> Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(facts, dict):
        raise ConversionError(f"{where}: no dtype, shape and data_offsets")
    dtype, shape, offsets = facts.get("dtype"), facts.get("shape"), facts.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _ITEM_NBYTES:
        raise ConversionError(f"{where} has dtype {dtype!r}; expected one of {', '.join(_WEIGHTS)}")
    if not _counts(shape) or len(shape) > 8:
        raise ConversionError(f"{where} has shape {shape!r}; expected at most 8 whole numbers")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ConversionError(f"{where} has data_offsets {offsets!r}; expected a start and an end")
    expected = _nbytes(dtype, shape)
    if offsets[1] - offsets[0] != expected:
        raise ConversionError(
            f"{where} at byte {start + offsets[0]} takes {offsets[1] - offsets[0]} bytes; "
            f"{dtype} of shape {shape} takes {expected}"
        )
    if start + offsets[1] > size:
        raise ConversionError(
            f"{where} ends at byte {start + offsets[1]}, the file has {size}: it is cut off; fetch it again"
        )
    return Entry(name, path, dtype, tuple(shape), start + offsets[0], file)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _nbytes(dtype: str, shape: Any) -> int:
    return int(prod(shape)) * _ITEM_NBYTES[dtype]
