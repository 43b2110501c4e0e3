"""What a converted file will hold: each tensor with its type and the rows it is made of; nothing is read here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kit.core.dtypes import DType

Floats = npt.NDArray[np.float32]

SLAB_ELEMENTS = 1 << 19
"""Elements read, converted and written at a time: what bounds memory, and how long an interrupt waits."""


_SLOW = {"iq1": 32, "iq2": 32, "iq3": 4}  # how many times fewer of the types ggml searches long for


class RowSource(Protocol):
    """Rows of one stored tensor, read when they are needed."""

    @property
    def n_rows(self) -> int:
        """How many rows it has."""

    @property
    def n_columns(self) -> int:
        """How many elements a row has."""

    def rows(self, first: int, count: int) -> Floats:
        """Return rows as float32 (count, n_columns)."""

    def raw(self, first: int, count: int) -> bytes:
        """Return rows as they are stored."""

    def where(self, row: int = 0) -> str:
        """Name file, tensor and byte of a row, for a message."""


@dataclass(frozen=True)
class ArraySource:
    """Rows of an array made while converting, as the table of a rotation."""

    name: str
    values: Floats

    @property
    def n_rows(self) -> int:
        """One."""
        return 1

    @property
    def n_columns(self) -> int:
        """All elements."""
        return self.values.size

    def rows(self, first: int, count: int) -> Floats:
        """Return the array as one row."""
        return self.values.reshape(1, -1)

    def raw(self, first: int, count: int) -> bytes:
        """Return its bytes."""
        return self.values.tobytes()

    def where(self, row: int = 0) -> str:
        """Name the array."""
        return f"computed {self.name!r}"


@dataclass(frozen=True)
class Piece:
    """``n_rows`` rows of a source from ``first_row``.

    ``n_pair_rows`` is 0, or the rows of one head, whose rotated pairs lie half a head apart in the checkpoint and
    next to each other in GGUF: of each head, row j of the first half becomes row 2j, row j of the second 2j + 1.
    """

    source: RowSource
    first_row: int
    n_rows: int
    n_pair_rows: int = 0

    def floats(self, first: int, count: int) -> Floats:
        """Return ``count`` rows from the piece's row ``first``, whole heads where pairs are rearranged."""
        values = self.source.rows(self.first_row + first, count)
        if not self.n_pair_rows:
            return values
        heads = values.reshape(-1, 2, self.n_pair_rows // 2, values.shape[1])
        return heads.swapaxes(1, 2).reshape(values.shape)


@dataclass(frozen=True)
class Slab:
    """Some rows of one piece; what one worker does at a time."""

    tensor: PlannedTensor
    piece: Piece
    first: int
    count: int


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the converted file: GGUF's name, numpy ``shape``, its type and, in ``reason``, why that type.

    ``copied``: the stored bytes are taken as they are, because they have that type already.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    pieces: tuple[Piece, ...]
    source_dtype: str
    reason: str = ""
    copied: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes in the converted file."""
        return self.dtype.nbytes(prod(self.shape))

    def slabs(self) -> Iterator[Slab]:
        """Yield all rows in order, in slabs of about SLAB_ELEMENTS, fewer of the types that take long."""
        n_elements = SLAB_ELEMENTS // _SLOW.get(self.dtype.name[:3], 1)
        for piece in self.pieces:
            unit = max(1, piece.n_pair_rows)
            step = max(1, n_elements // piece.source.n_columns // unit) * unit
            for first in range(0, piece.n_rows, step):
                yield Slab(self, piece, first, min(step, piece.n_rows - first))
