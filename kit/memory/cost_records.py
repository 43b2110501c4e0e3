"""What memory costs, as records: printed, drawn, written; nothing is measured here."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kit.memory.shown import Shown
from kit.tables import html_table, png_tag, text_table
from kit.units import bytes_text, time_text


@dataclass(frozen=True)
class Cost:
    """One kind of memory at one size: medians over ``repeats`` trips of allocate, touch every page, free.

    Times in nanoseconds; ``total_p10_ns`` and ``total_p90_ns`` are the spread of ``total_ns``, ``first_ns`` is
    the first trip of all. ``faults`` counts the page faults of one touch. ``asked`` and ``got`` name the memory:
    where they differ something fell back, and ``note`` says why. ``device`` is empty for this process's own memory.
    """

    kind: str
    nbytes: int
    alloc_ns: int
    touch_ns: int
    free_ns: int
    total_ns: int
    total_p10_ns: int
    total_p90_ns: int
    first_ns: int
    faults: int
    repeats: int
    device: str
    buffer_type: str
    asked: str
    got: str
    note: str

    @property
    def fell_back(self) -> bool:
        """Whether this is other memory than was asked for."""
        return self.asked != self.got

    def __str__(self) -> str:
        return f"{self.kind}, {bytes_text(self.nbytes)}: {time_text(self.total_ns)}" + (" *" if self.note else "")


@dataclass(frozen=True)
class Copy:
    """Copying ``nbytes`` from memory of one kind to ``device`` and back: medians and spread, nanoseconds."""

    kind: str
    nbytes: int
    device: str
    buffer_type: str
    to_ns: int
    to_p10_ns: int
    to_p90_ns: int
    from_ns: int
    from_p10_ns: int
    from_p90_ns: int
    repeats: int
    note: str


@dataclass(frozen=True)
class Refused:
    """A kind of memory this machine did not give."""

    kind: str
    nbytes: int
    device: str
    reason: str


class Costs(Shown, tuple[Cost, ...]):
    """Costs of every kind at every size; ``copies`` to and from the devices; ``refused`` what could not be had."""

    _TITLE = "What memory costs here"
    copies: tuple[Copy, ...]
    refused: tuple[Refused, ...]

    def __new__(cls, costs: Iterable[Cost] = (), copies: Iterable[Copy] = (), refused: Iterable[Refused] = ()) -> Costs:
        """Take the records as they are."""
        made = super().__new__(cls, costs)
        made.copies = tuple(copies)
        made.refused = tuple(refused)
        return made

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes measured, in bytes, ascending."""
        return tuple(sorted({cost.nbytes for cost in self}))

    @property
    def notes(self) -> tuple[str, ...]:
        """What fell back or was refused, each once."""
        known = {cost.note for cost in self}
        fallen = [f"{label_of(cost)}, {bytes_text(cost.nbytes)}: {cost.note}" for cost in self if cost.note]
        copied = [
            f"copies {c.kind} - {c.device}, {bytes_text(c.nbytes)}: {c.note}"
            for c in self.copies
            if c.note and c.note not in known
        ]
        return tuple(dict.fromkeys([*fallen, *copied, *self._refusals()]))

    def _refusals(self) -> list[str]:
        """One line for each reason: which kinds, at which sizes."""
        kinds: dict[tuple[str, str], dict[str, None]] = {}
        sizes: dict[tuple[str, str], set[int]] = {}
        for r in self.refused:
            kinds.setdefault((r.device, r.reason), {})[r.kind] = None
            sizes.setdefault((r.device, r.reason), set()).add(r.nbytes)
        return [
            f"not given{' by ' + device if device else ''}: {', '.join(kinds[device, reason])} "
            f"({', '.join(map(bytes_text, sorted(sizes[device, reason])))}): {reason}"
            for device, reason in kinds
        ]

    def total_table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows: a kind a row, a size a column, total time with its spread."""
        marked = {(label_of(c), c.nbytes): _spread(c.total_ns, c.total_p10_ns, c.total_p90_ns, c.note) for c in self}
        return self._by_size("total (p10-p90)", marked)

    def part_table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows: where the time of each trip goes, and the page faults of its touch."""
        parts = {
            (
                label_of(c),
                c.nbytes,
            ): f"{'/'.join(time_text(t) for t in (c.alloc_ns, c.touch_ns, c.free_ns))}; {c.faults}"
            for c in self
        }
        return self._by_size("allocate/touch/free; faults", parts)

    def copy_table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows: a kind of memory and a device a row, a size a column, time there and back."""
        cells = {
            (f"{c.kind} - {c.device}", c.nbytes): f"{time_text(c.to_ns)} / {time_text(c.from_ns)}{'*' * bool(c.note)}"
            for c in self.copies
        }
        return self._by_size("copy to / from", cells)

    def _by_size(self, corner: str, cells: dict[tuple[str, int], str]) -> tuple[list[str], list[list[str]]]:
        sizes = sorted({nbytes for _, nbytes in cells})
        labels = list(dict.fromkeys(label for label, _ in cells))
        rows = [[label, *(cells.get((label, nbytes), "-") for nbytes in sizes)] for label in labels]
        return [corner, *map(bytes_text, sizes)], rows

    def text(self) -> str:
        """Three tables, then what fell back."""
        if not self:
            return "nothing was measured\n" + "\n".join(self.notes)
        tables = [self.total_table(), self.part_table(), *([self.copy_table()] if self.copies else [])]
        notes = [f"* {note}" for note in self.notes]
        return "\n\n".join([*(text_table(*table) for table in tables), *(["\n".join(notes)] if notes else [])])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``costs``, ``copies``, ``refused``, lists of records."""
        groups: dict[str, Sequence[Any]] = {"costs": self, "copies": self.copies, "refused": self.refused}
        return {name: [asdict(record) for record in records] for name, records in groups.items()}

    def _drawn(self, form: str) -> bytes:
        from kit.memory.cost_chart import draw_costs  # matplotlib takes half a second to import

        return draw_costs(self, form)

    def _repr_html_(self) -> str:
        if not self:
            return f"<pre>{html.escape(self.text())}</pre>"
        parts = [png_tag(self.png(), "time against size, a curve for each kind of memory")]
        parts.append(html_table(*self.total_table()))
        parts += [f"<p>* {html.escape(note)}</p>" for note in self.notes]
        parts += ["<details><summary>where the time goes</summary>", html_table(*self.part_table()), "</details>"]
        if self.copies:
            parts += ["<details><summary>copies</summary>", html_table(*self.copy_table()), "</details>"]
        return "\n".join(parts)


def label_of(cost: Cost) -> str:
    """A kind with its device, where the kind alone does not tell."""
    return f"{cost.kind} of {cost.device}" if cost.device else cost.kind


def _spread(median: int, low: int, high: int, note: str) -> str:
    return f"{time_text(median)} ({time_text(low)}-{time_text(high)}){'*' * bool(note)}"
