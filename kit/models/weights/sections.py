"""Which bytes of which files go where, cut into reads and shared out among readers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kit.core.gguf import GGUFPart, TensorInfo

CHUNK_BYTES = 4 << 20
MAX_GAP_BYTES = 64 << 10
MAX_PIECES = 512  # of one read; the system takes 1024


@dataclass(frozen=True)
class Piece:
    """Bytes of one tensor, or of the padding before it (no name), and the address they go to (0: nowhere)."""

    name: str
    nbytes: int
    address: int


@dataclass(frozen=True)
class Chunk:
    """One read: ``pieces`` lie one after another in ``part`` from byte ``offset``."""

    part: GGUFPart
    offset: int
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


def chunks(part: GGUFPart, targets: Iterable[tuple[TensorInfo, int]], limit: int) -> Iterator[Chunk]:
    """Yield the reads, of at most ``limit`` bytes, that fill each tensor at its address; in file order.

    Small neighbours are read at once, with the padding between them: a read costs a trip to the disk.
    """
    offset, pieces, size = 0, list[Piece](), 0
    for at, piece in _pieces(targets, limit):
        gap = at - (offset + size)
        if pieces and (not 0 <= gap <= MAX_GAP_BYTES or size + gap + piece.nbytes > limit or len(pieces) > MAX_PIECES):
            yield Chunk(part, offset, tuple(pieces))
            pieces = []
        if not pieces:
            offset, size, gap = at, 0, 0
        if gap:
            pieces.append(Piece("", gap, 0))
        pieces.append(piece)
        size += gap + piece.nbytes
    if pieces:
        yield Chunk(part, offset, tuple(pieces))


def _pieces(targets: Iterable[tuple[TensorInfo, int]], limit: int) -> Iterator[tuple[int, Piece]]:
    for info, address in sorted(targets, key=lambda item: item[0].offset):
        for start in range(0, info.nbytes, limit):
            yield info.offset + start, Piece(info.name, min(limit, info.nbytes - start), address + start)


def shares(work: list[Chunk], n_readers: int) -> list[list[Chunk]]:
    """Cut ``work`` into at most ``n_readers`` runs of about as many bytes each; none is empty."""
    total = sum(chunk.nbytes for chunk in work) or 1
    middles = (end - chunk.nbytes / 2 for chunk, end in zip(work, _running(work), strict=True))
    numbered = zip((int(middle * n_readers / total) for middle in middles), work, strict=True)
    return [[chunk for _, chunk in group] for _, group in itertools.groupby(numbered, key=lambda item: item[0])]


def _running(work: list[Chunk]) -> Iterator[int]:
    return itertools.accumulate(chunk.nbytes for chunk in work)
