"""A report as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.tables import printable, text_table
from kit.units import bytes_text, counted, time_text

if TYPE_CHECKING:
    from kit.memory.report import MemoryReport, Row

_N_ROWS = 12


def report_text(report: MemoryReport) -> str:
    """Return the report as a page of text."""
    lines = [
        f"peak {bytes_text(report.peak)}, live at the end {bytes_text(report.live_nbytes)}, "
        f"{counted(len(report.recording), 'event')}",
        *(f"recording incomplete: {reason}" for reason in report.recording.incomplete),
        *_table("live at peak", report.at_peak),
        *_table("live at the end", report.live),
        *_by_device(report),
        *_leaks(report),
        *_rest(report),
    ]
    return "\n".join(map(printable, lines))


def _table(title: str, rows: list[Row]) -> list[str]:
    if not rows:
        return [f"{title}: nothing"]
    cells = [
        (bytes_text(row.nbytes), f"{row.count} x {row.kind}", row.purpose, row.owner, row.buffer_type, row.library)
        for row in rows[:_N_ROWS]
    ]
    more = [f"... {len(rows) - _N_ROWS} more"] if len(rows) > _N_ROWS else []
    return [f"{title}:", *_indented(text_table((), cells, range(1, 6)).splitlines() + more)]


def _by_device(report: MemoryReport) -> list[str]:
    cells = [(bytes_text(nbytes), *key) for key, nbytes in report.by_device().items() if nbytes]
    if not cells:
        return []
    return ["at peak by device, buffer type and purpose:", *_indented(text_table((), cells, range(1, 4)).splitlines())]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _leaks(report: MemoryReport) -> list[str]:
    if not report.leaks:
        return ["leaks: none"]
    lines = ["not freed:"]
    for leak in report.leaks[:_N_ROWS]:
        lines.append(f"  {leak}")
        lines.append(
            f"    first {time_text(leak.age_ns)} before the end, {counted(leak.n_passes, 'pass', 'passes')}"
            + (f", in {leak.scope}" if leak.scope else "")
        )
    if len(report.leaks) > _N_ROWS:
        lines.append(f"  ... {counted(len(report.leaks) - _N_ROWS, 'more place')}")
    return lines


def _rest(report: MemoryReport) -> list[str]:
    un = report.unaccounted
    lines = [
        f"the system: RssAnon {_signed(un.rss_anon)}, RssFile {_signed(un.rss_file)}, swapped {_signed(un.vm_swap)}, "
        f"locked {_signed(un.vm_lck)}; tracked {_signed(un.tracked)}, unaccounted {_signed(un.anon)}"
    ]
    reserved = [f"{n} {bytes_text(got)} for {bytes_text(asked)} asked" for n, got, asked in report.reserved_and_used()]
    if reserved:
        lines.append("reserved at peak: " + ", ".join(reserved))
    contexts = report.contexts_by_owner()
    if contexts:
        lines.append("contexts at peak: " + ", ".join(f"{owner} {n}" for owner, n in contexts.items()))
    if report.by_design:
        lines.append("by design: " + "; ".join(f"{leak.owner} {bytes_text(leak.nbytes)}" for leak in report.by_design))
    if report.n_frees_of_older:
        lines.append(f"{counted(report.n_frees_of_older, 'free')} of things allocated before tracking began")
    return lines


def _signed(nbytes: int) -> str:
    return ("+" if nbytes >= 0 else "-") + bytes_text(abs(nbytes))
