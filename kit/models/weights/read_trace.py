"""What the readers of a file did: each read of each reader, and whether it went straight through its section."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from kit.units import bytes_text, time_text

_WIDTH = 48
_SHADES = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Read:
    """One read: ``nbytes`` from byte ``offset`` of the file ``path``; times are ns since reading began."""

    path: Path
    offset: int
    nbytes: int
    start_ns: int
    end_ns: int

    @property
    def end(self) -> int:
        """The byte behind the last one read."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class ReaderTrace:
    """The reads of one reader, in the order it made them."""

    number: int
    reads: tuple[Read, ...]

    @property
    def nbytes(self) -> int:
        """Bytes read, with the padding between tensors."""
        return sum(read.nbytes for read in self.reads)

    @property
    def took_ns(self) -> int:
        """From the start of the first read to the end of the last."""
        return self.reads[-1].end_ns - self.reads[0].start_ns if self.reads else 0

    @property
    def sequential(self) -> bool:
        """Whether it never went back in a file, nor to an earlier file, nor began a read before the last ended."""
        files = [path for path, _ in itertools.groupby(self.reads, key=lambda read: read.path)]
        return len(files) == len(set(files)) and all(
            after.start_ns >= before.end_ns and (after.path != before.path or after.offset >= before.end)
            for before, after in itertools.pairwise(self.reads)
        )


@dataclass(frozen=True)
class ReadTrace:
    """All readers of a load; ``text()`` draws where in the files each of them read, and when.

    Raises nothing: it is plain data.
    """

    readers: tuple[ReaderTrace, ...]

    @property
    def nbytes(self) -> int:
        """Bytes read by all."""
        return sum(reader.nbytes for reader in self.readers)

    @property
    def n_reads(self) -> int:
        """Reads of all."""
        return sum(len(reader.reads) for reader in self.readers)

    @property
    def took_ns(self) -> int:
        """From the first read's start to the last one's end."""
        reads = [read for reader in self.readers for read in reader.reads]
        return max(r.end_ns for r in reads) - min(r.start_ns for r in reads) if reads else 0

    @property
    def sequential(self) -> bool:
        """Whether each reader read its section from front to back."""
        return all(reader.sequential for reader in self.readers)

    def rows(self) -> list[tuple[str, str, str, str, str, str, str]]:
        """Return per reader and file: number, file, first and last byte, reads, bytes, time, bytes a second."""
        rows = []
        for reader in self.readers:
            for path, group in itertools.groupby(reader.reads, key=lambda read: read.path):
                reads = list(group)
                nbytes, took = sum(r.nbytes for r in reads), reads[-1].end_ns - reads[0].start_ns
                rate = f"{bytes_text(round(nbytes * 1e9 / took))}/s" if took else ""
                span = f"{reads[0].offset} to {reads[-1].end}"
                row = (
                    str(reader.number),
                    _printable(path.name),
                    span,
                    str(len(reads)),
                    bytes_text(nbytes),
                    time_text(took),
                    rate,
                )
                rows.append(row)
        return rows

    @property
    def title(self) -> str:
        """One line: how many readers, how much, in what order."""
        order = "each from front to back" if self.sequential else "NOT each from front to back"
        who = f"{len(self.readers)} reader{'' if len(self.readers) == 1 else 's'}"
        return f"{who}, {bytes_text(self.nbytes)} in {self.n_reads} read{'' if self.n_reads == 1 else 's'}, {order}"

    def text(self) -> str:
        """Return a table, and under it a line per reader: how far through its bytes it was as time went by."""
        table = [("reader", "file", "bytes", "reads", "size", "time", "rate"), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(7)]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        pictures = [f"{reader.number:>6}  {self._picture(reader)}" for reader in self.readers]
        return "\n".join([self.title, *lines, f"share read, over {time_text(self.took_ns)}", *pictures])

    def _picture(self, reader: ReaderTrace) -> str:
        """A column per slice of the whole time; the higher, the more of the reader's bytes were there by then."""
        if not reader.reads or not self.took_ns:
            return ""
        columns = []
        for column in range(1, _WIDTH + 1):
            done = sum(r.nbytes for r in reader.reads if r.end_ns * _WIDTH <= self._end_ns * column)
            columns.append(_SHADES[done * (len(_SHADES) - 1) // reader.nbytes])
        return "".join(columns)

    @property
    def _end_ns(self) -> int:
        return max(read.end_ns for reader in self.readers for read in reader.reads)

    def __repr__(self) -> str:
        return self.text()


def _printable(name: str) -> str:
    """A file's name may hold anything; control codes could steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)
