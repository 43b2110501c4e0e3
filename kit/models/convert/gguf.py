"""A GGUF file as the source of another: its metadata kept byte by byte, its matrices in another type."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kit.core.dtypes import DType, all_dtypes, to_array
from kit.core.gguf_source import Source, TensorInfo
from kit.errors import UnsupportedModel
from kit.models.architecture.config import ARCHITECTURES
from kit.models.convert.plan import Floats, Piece, PlannedTensor
from kit.models.convert.types import Chooser, Target, file_type
from kit.models.convert.write import padding

_FILE_TYPE, _UINT32 = "general.file_type", 4


@dataclass(frozen=True)
class GgufRows:
    """The rows of one tensor of an open GGUF file."""

    source: Source
    info: TensorInfo
    dtype: DType

    @property
    def n_columns(self) -> int:
        """The length of one row."""
        return self.info.ne[0]

    @property
    def n_rows(self) -> int:
        """How many rows all other dimensions make."""
        return prod(self.info.ne[1:])

    def rows(self, first: int, count: int) -> Floats:
        """Return rows as float32 (count, n_columns), dequantized by ggml."""
        raw = np.frombuffer(self.raw(first, count), np.uint8)
        return np.asarray(to_array(raw, self.dtype, (count, self.n_columns)), np.float32)

    def raw(self, first: int, count: int) -> bytes:
        """Return the bytes of rows as the file has them."""
        nbytes = self.dtype.nbytes(self.n_columns)
        return self.source.read(self.info.offset + first * nbytes, count * nbytes, f"tensor {self.info.name!r}")

    def where(self, row: int = 0) -> str:
        """Name file, tensor and byte of a row, for a message."""
        at = self.info.offset + row * self.dtype.nbytes(self.n_columns)
        return f"{self.source.path}: tensor {self.info.name!r} at byte {at}"


def plan_gguf(source: Source, metadata: Mapping[str, Any], target: Target) -> list[PlannedTensor]:
    """Return the tensors of ``source`` with the types they get in a file of ``target``.

    Raises UnsupportedModel for an architecture whose tensors kit does not know, or a file that is one of several.
    """
    architecture = metadata["general.architecture"]
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(f"{source.path}: architecture {architecture!r}; kit converts {', '.join(ARCHITECTURES)}")
    if "split.count" in metadata:
        raise UnsupportedModel(f"{source.path}: one of several files (split.count); join them first")
    n_layer, n_expert = (int(metadata.get(f"{architecture}.{key}", 0)) for key in ("block_count", "expert_count"))
    infos = source.header.tensors
    chooser = Chooser(target, n_layer, n_expert, tied="output.weight" not in infos)
    return [_planned(source, info, chooser) for info in infos.values()]


def _planned(source: Source, info: TensorInfo, chooser: Chooser) -> PlannedTensor:
    dtype = all_dtypes()[info.dtype.lower()]
    choice = chooser.choose(info.name, info.shape)
    if len(info.shape) < 2 or (dtype.numpy is not None and dtype.numpy.kind == "i"):
        choice = replace(choice, dtype=dtype)
    rows = GgufRows(source, info, dtype)
    return PlannedTensor(
        info.name,
        info.shape,
        choice.dtype,
        (Piece(rows, 0, rows.n_rows),),
        info.dtype,
        choice.reason,
        copied=choice.dtype == dtype,
    )


def header_copier(source: Source, target: Target, tensors: Sequence[PlannedTensor]) -> Callable[[Path], None]:
    """Return what writes ``source``'s header with the new types: every key as it was but ``general.file_type``."""

    def write_header(path: Path) -> None:
        header = source.header
        start, pairs = 24, []
        for key, spot in header.spots.items():
            end = spot.offset + spot.nbytes
            pair = source.read(start, end - start, f"key {key!r}")
            if key == _FILE_TYPE and spot.type == _UINT32 and not spot.is_array:
                pair = pair[:-4] + struct.pack("<I", file_type(target))
            pairs.append(pair)
            start = end
        head = struct.pack("<4sIQQ", b"GGUF", header.version, len(tensors), len(pairs))
        path.write_bytes(head + b"".join(pairs) + _tensor_table(tensors, header.alignment))

    return write_header


def _tensor_table(tensors: Sequence[PlannedTensor], alignment: int) -> bytes:
    """Return the table: name, dimensions in ggml's order, type, offset from the start of the data."""
    table, offset = bytearray(), 0
    for tensor in tensors:
        name = tensor.name.encode()
        table += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape))
        table += struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape[::-1], tensor.dtype.id, offset)
        offset += tensor.nbytes + padding(tensor.nbytes, alignment)
    return bytes(table)
