"""Which token lies in which cell of a cache: its position, and the sequences that see it. Plain numpy.

llama.cpp's unified cache works so: a cell may belong to several sequences, which is how they share a prefix, and a
token sees the cells of its own sequences up to its position. New tokens take whatever cells are free, so there is
nothing to defragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.errors import ArgumentError, CacheFull

MAX_SEQUENCES = 64  # a bit each
MAIN = 0
_FREE = -1


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens for a pass and where they go; every array but the last has one entry a token.

    ``seen_by`` holds a bit per sequence, ``out_rows`` are the rows whose logits are wanted, ascending.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    seen_by: npt.NDArray[np.uint64]
    cells: npt.NDArray[np.int64]
    out_rows: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tokens)

    def parts(self, n_tokens: int) -> Iterator[Batch]:
        """Yield the batch in pieces of at most ``n_tokens``."""
        for start in range(0, len(self), n_tokens):
            at = slice(start, start + n_tokens)
            rows = self.out_rows[(self.out_rows >= start) & (self.out_rows < start + n_tokens)] - np.int32(start)
            yield Batch(self.tokens[at], self.positions[at], self.seen_by[at], self.cells[at], rows)


class Cells:
    """The cells of one cache: ``n_cells`` there are, ``n_ctx`` of them may be used, the rest is padding."""

    def __init__(self, n_cells: int, n_ctx: int, window: int | None = None) -> None:
        self.n_ctx = n_ctx
        self.window = window
        self.positions = np.full(n_cells, _FREE, np.int32)
        self.seen_by = np.zeros(n_cells, np.uint64)
        self.stained = np.zeros(n_cells, np.bool_)
        self._open = {MAIN}
        self.ends = np.zeros(MAX_SEQUENCES, np.int64)  # position of each sequence's next token

    @property
    def n_used(self) -> int:
        """Cells that some sequence sees."""
        return int(np.count_nonzero(self.seen_by))

    @property
    def top(self) -> int:
        """One more than the highest cell in use."""
        used = self.seen_by[::-1] != 0
        from_end = int(used.argmax())
        return len(used) - from_end if used[from_end] else 0

    def end(self, sequence: int = MAIN) -> int:
        """Return the position of the next token of ``sequence``."""
        return int(self.ends[sequence])

    def of(self, sequence: int = MAIN) -> npt.NDArray[np.int64]:
        """Return the cells of ``sequence``, by position."""
        cells = np.flatnonzero(self.seen_by & _bit(sequence))
        return cells[np.argsort(self.positions[cells], kind="stable")]

    def fit(self, n_tokens: int) -> bool:
        """Whether ``n_tokens`` more fit, if need be in place of those that left the window."""
        if n_tokens > self.n_ctx - self.n_used:
            self.evict()
        return n_tokens <= self.n_ctx - self.n_used

    def room_for(self, n_tokens: int) -> None:
        """Raise CacheFull unless ``n_tokens`` more fit."""
        if not self.fit(n_tokens):
            n_used = self.n_used
            raise CacheFull(
                f"{n_tokens} tokens do not fit: the cache holds n_ctx={self.n_ctx}, {n_used} are used, "
                f"{self.n_ctx - n_used} free; reset() it, shift() it, or open a session with a larger n_ctx"
            )

    def n_gone_after(self, n_keep: int, n_discard: int) -> int:
        """Return how many first tokens of the main sequence would be in the window, but have no cell, after a shift."""
        held = self.positions[self.of(MAIN)]
        n_held = np.count_nonzero((held < n_keep) | (held >= n_keep + n_discard))
        n_left = self.end(MAIN) - n_discard
        return 0 if self.window is None or n_held >= min(n_left, self.window) else int(n_left - n_held)

    def evict(self) -> None:
        """Free cells that left the sliding window of every sequence that sees them."""
        if self.window is None:
            return
        for sequence in self.sequences():
            oldest = self.end(sequence) - self.window  # the last token may be run once more
            self.cut(sequence, 0, oldest)

    def sequences(self) -> list[int]:
        """Return the sequences that have cells."""
        return _sequences_of(self.seen_by)

    def batch(self, tokens: list[int], sequence: int = MAIN, out_rows: npt.NDArray[np.int32] | None = None) -> Batch:
        """Return ``tokens`` as the next ones of ``sequence``, in free cells; nothing changes until `enter`.

        Raises:
            CacheFull: too few cells are free.
        """
        first = self.end(sequence)
        n = len(tokens)
        rows = np.arange(n, dtype=np.int32) if out_rows is None else out_rows
        positions = np.arange(first, first + n, dtype=np.int32)
        return Batch(np.asarray(tokens, np.int32), positions, np.full(n, _bit(sequence)), self.find(n), rows)

    def last(self, token: int, sequence: int = MAIN) -> Batch:
        """Return the last token of ``sequence``, in the cell it has, to be run once more."""
        cells, rows = self.of(sequence)[-1:], np.zeros(1, np.int32)
        return Batch(np.array([token], np.int32), self.positions[cells], np.full(1, _bit(sequence)), cells, rows)

    def joined(self, sequences: Sequence[int], tokens: Sequence[list[int]], n_out: Sequence[int]) -> Batch:
        """Return one batch of the next ``tokens`` of several sequences, asking for the last ``n_out`` rows of each.

        Raises:
            CacheFull: too few cells are free.
        """
        counts = np.array([len(ids) for ids in tokens])
        ends = counts.cumsum()
        firsts = np.repeat(self.ends[list(sequences)] - (ends - counts), counts)
        rows = [np.arange(end - n, end, dtype=np.int32) for end, n in zip(ends, n_out, strict=True)]
        return Batch(
            np.concatenate([np.asarray(ids, np.int32) for ids in tokens]),
            (firsts + np.arange(ends[-1])).astype(np.int32),
            np.repeat(np.array([_bit(sequence) for sequence in sequences]), counts),
            self.find(int(ends[-1])),
            np.concatenate(rows),
        )

    def find(self, n: int) -> npt.NDArray[np.int64]:
        """Return ``n`` free cells, the lowest first.

        Raises:
            CacheFull: there are fewer.
        """
        self.room_for(n)
        return np.flatnonzero(self.seen_by == 0)[:n]

    def enter(self, batch: Batch) -> None:
        """Note that the tokens of ``batch`` lie in their cells."""
        self.positions[batch.cells] = batch.positions
        self.seen_by[batch.cells] = batch.seen_by
        if self.stained.any():
            self.stain(batch)  # what it saw may have reached it
        for sequence in _sequences_of(batch.seen_by):
            last = batch.positions[(batch.seen_by & _bit(sequence)) != 0].max()
            self.ends[sequence] = max(int(self.ends[sequence]), int(last) + 1)

    def stain(self, batch: Batch) -> None:
        """Note that keys or values of ``batch`` may be no finite numbers; they must be cleared once they are free."""
        self.stained[batch.cells] = True

    def stained_and_free(self) -> npt.NDArray[np.int64]:
        """Return the free cells that must be cleared before attention reads past them."""
        return np.flatnonzero(self.stained & (self.seen_by == 0)) if self.stained.any() else np.empty(0, np.int64)

    def leave(self, batch: Batch) -> None:
        """Take `enter` back."""
        for sequence in _sequences_of(batch.seen_by):
            first = batch.positions[(batch.seen_by & _bit(sequence)) != 0].min()
            self.ends[sequence] = min(int(self.ends[sequence]), int(first))
        self._free(batch.cells)

    def visible(self, batch: Batch, n_kv: int) -> npt.NDArray[np.bool_]:
        """Return which of the first ``n_kv`` cells each token sees (tokens, n_kv), its batch included."""
        positions, seen_by = self.positions[:n_kv].copy(), self.seen_by[:n_kv].copy()
        positions[batch.cells], seen_by[batch.cells] = batch.positions, batch.seen_by
        seen = positions[None, :] <= batch.positions[:, None]
        if self.window is not None:
            seen &= positions[None, :] > batch.positions[:, None] - self.window
        bits = batch.seen_by[0]
        if len(batch) == 1 or (batch.seen_by == bits).all():
            seen &= (seen_by & bits) != 0
        else:
            seen &= (seen_by[None, :] & batch.seen_by[:, None]) != 0
        return seen

    def share(self, source: int, target: int) -> None:
        """Let ``target``, which is empty, see all that ``source`` sees; nothing is copied."""
        cells = self.of(source)
        self.seen_by[cells] |= _bit(target)
        self.ends[target] = self.ends[source]

    def open_sequences(self, n: int) -> list[int]:
        """Return ``n`` new sequences, empty.

        Raises:
            ArgumentError: a cache has no more.
        """
        unused = [sequence for sequence in range(MAX_SEQUENCES) if sequence not in self._open][:n]
        if len(unused) < n:
            raise ArgumentError(
                f"{n} more sequences: a cache has {MAX_SEQUENCES}, {len(self._open)} are open; close() some"
            )
        self._open.update(unused)
        return unused

    def close_sequences(self, sequences: Iterable[int]) -> None:
        """Let ``sequences`` forget everything, and take them back."""
        for sequence in sequences:
            self.forget(sequence)
            self._open.discard(sequence)

    def cut(self, sequence: int, first: int, end: int) -> None:
        """Let ``sequence`` forget the positions from ``first`` up to, not including, ``end``."""
        cells = self.of(sequence)
        self.cut_cells(sequence, cells[(self.positions[cells] >= first) & (self.positions[cells] < end)])
        if end >= self.ends[sequence]:
            self.ends[sequence] = min(int(self.ends[sequence]), first)

    def agree(self, sequence: int, n_tokens: int) -> None:
        """Forget what an interrupt left behind: tokens of ``sequence`` that its owner does not know of."""
        if self.end(sequence) > n_tokens:
            self.cut(sequence, n_tokens, self.end(sequence))

    def cut_cells(self, sequence: int, cells: npt.NDArray[np.int64]) -> None:
        """Take ``cells`` from ``sequence``; those that no other sees are free."""
        self.seen_by[cells] &= ~_bit(sequence)
        self._free(cells[self.seen_by[cells] == 0])

    def forget(self, sequence: int) -> None:
        """Let ``sequence`` forget everything."""
        self.cut(sequence, 0, self.end(sequence))

    def clear(self) -> None:
        """Free all cells; stains stay until `kit.models.cache.scrub` has cleared them."""
        self.positions.fill(_FREE)
        self.seen_by.fill(0)
        self.ends.fill(0)
        self._open = {MAIN}

    def _free(self, cells: npt.NDArray[np.int64]) -> None:
        self.positions[cells] = _FREE
        self.seen_by[cells] = 0


def _bit(sequence: int) -> np.uint64:
    return np.uint64(1 << sequence)


def _sequences_of(seen_by: npt.NDArray[np.uint64]) -> list[int]:
    every = int(np.bitwise_or.reduce(seen_by))
    found = []
    while every:
        found.append((every & -every).bit_length() - 1)
        every &= every - 1
    return found
