"""The difference of two reports."""

from __future__ import annotations

from dataclasses import dataclass

from kit.errors import ArgumentError
from kit.memory.leaks import NOWHERE, Leak
from kit.memory.report import MemoryReport
from kit.tables import printable
from kit.units import bytes_text


@dataclass(frozen=True)
class Change:
    """One place whose memory at the end differs: what, where, and by how much."""

    what: str
    where: str
    count: int
    nbytes: int

    def __str__(self) -> str:
        sign = "+" if self.nbytes >= 0 else "-"
        where = self.where or NOWHERE
        return printable(f"{sign}{bytes_text(abs(self.nbytes))} ({self.count:+d}) {self.what} at {where}")


@dataclass(frozen=True)
class Diff:
    """What ``b`` has more (positive) or less (negative) than ``a``, largest change first."""

    peak: int
    live: int
    changes: tuple[Change, ...]

    def text(self) -> str:
        """The difference as text."""
        head = f"peak {_signed(self.peak)}, live at the end {_signed(self.live)}"
        return "\n".join(
            [head, *(f"  {change}" for change in self.changes)] if self.changes else [head, "  no place differs"]
        )

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def diff(a: MemoryReport, b: MemoryReport) -> Diff:
    """Return what changed from ``a`` to ``b``: peak, live bytes, and places that hold more or less at the end.

    Raises ArgumentError for what is no report.
    """
    for report in (a, b):
        if not isinstance(report, MemoryReport):
            raise ArgumentError(f"diff takes two memory reports, not {type(report).__name__}; see Tracker.report()")
    before, after = _by_place(a), _by_place(b)
    changes = []
    for place in before.keys() | after.keys():
        old, new = before.get(place, (0, 0)), after.get(place, (0, 0))
        if old != new:
            changes.append(Change(place[0], place[1], new[0] - old[0], new[1] - old[1]))
    changes.sort(key=lambda change: -abs(change.nbytes))
    return Diff(b.peak - a.peak, b.live_nbytes - a.live_nbytes, tuple(changes))


def _by_place(report: MemoryReport) -> dict[tuple[str, str], tuple[int, int]]:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for leak in report.leaks:
        key = (_what(leak), leak.where)
        count, nbytes = totals.get(key, (0, 0))
        totals[key] = (count + leak.count, nbytes + leak.nbytes)
    return totals


def _what(leak: Leak) -> str:
    names = f" {', '.join(map(repr, leak.names))}" if leak.names else ""
    return f"{leak.kind}{names}, {leak.purpose} of {leak.owner}"


def _signed(nbytes: int) -> str:
    return ("+" if nbytes >= 0 else "-") + bytes_text(abs(nbytes))
