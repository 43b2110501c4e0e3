"""A report as one HTML page: inline styles and SVG, no script, nothing loaded from anywhere, all names escaped."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from kit.memory.flame import flame_html, flame_tree
from kit.memory.leaks import NOWHERE
from kit.tables import Html, html_table, png_tag, printable
from kit.units import bytes_text, counted, time_text

if TYPE_CHECKING:
    from kit.memory.leaks import Leak
    from kit.memory.report import MemoryReport, Row

_N_ROWS = 200
_WIDTH, _HEIGHT, _PAGE = 860, 150, 980
_COLORS = {"growth": "#c0392b", "live": "#b9770e", "cache": "#2471a3", "static": "#616a6b", "by design": "#1e8449"}


def report_html(report: MemoryReport, *, page: bool = True) -> str:
    """Return the report as HTML; ``page`` makes it a whole document, else a part for a notebook."""
    parts = [
        f"<p><b>peak {bytes_text(report.peak)}</b>, live at the end {bytes_text(report.live_nbytes)}, "
        f"{counted(len(report.recording), 'event')}</p>",
        *(f"<p><b>Recording incomplete:</b> {html.escape(reason)}</p>" for reason in report.recording.incomplete),
        timeline_svg(report) if page else png_tag(report.png(), "bytes live over time, and at peak by purpose"),
        _leaks(report.leaks),
        _rows("Live at peak", report.at_peak),
        _by_device(report),
        _rows("Live at the end", report.live),
        "<details><summary>Who allocated what was live at peak</summary>"
        + flame_html(flame_tree(report))
        + "</details>",
        _system(report),
    ]
    body = f'<div style="font:13px/1.5 system-ui,sans-serif;max-width:{_PAGE}px">' + "\n".join(parts) + "</div>"
    if not page:
        return body
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>ggml memory</title></head><body>{body}</body></html>'
    )


def timeline_svg(report: MemoryReport) -> str:
    """Return bytes live over time as an SVG picture: a step line, its peak marked."""
    points = report.timeline
    if not points:
        return "<p>nothing was allocated</p>"
    span, top = max(points[-1][0], 1), max(report.peak, 1)
    x = [t / span * _WIDTH for t, _ in points]
    y = [_HEIGHT - b / top * (_HEIGHT - 20) for _, b in points]
    steps = f"M0,{_HEIGHT}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in zip(x, y, strict=True)) + f"H{_WIDTH}V{_HEIGHT}Z"
    peak = max(range(len(points)), key=lambda i: points[i][1])
    anchor = "end" if x[peak] > _WIDTH / 2 else "start"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 18}" width="{_WIDTH}" height="{_HEIGHT + 18}" role="img" '
        f'aria-label="bytes live over time" style="max-width:100%;font:11px system-ui,sans-serif">'
        f'<path d="{steps}" fill="#2471a3" fill-opacity="0.25" stroke="#2471a3"/>'
        f'<circle cx="{x[peak]:.1f}" cy="{y[peak]:.1f}" r="3" fill="#c0392b"/>'
        f'<text x="{x[peak]:.1f}" y="{y[peak] - 5:.1f}" text-anchor="{anchor}" fill="currentColor">'
        f"{html.escape(bytes_text(points[peak][1]))}</text>"
        f'<text x="0" y="{_HEIGHT + 14}" fill="currentColor">0</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end" fill="currentColor">{time_text(span)}</text></svg>'
    )


def _leaks(leaks: list[Leak]) -> str:
    if not leaks:
        return "<h3>Not freed: nothing</h3>"
    rows = [
        (
            Html(f'<b style="color:{_COLORS.get(leak.verdict, "inherit")}">{html.escape(leak.verdict)}</b>'),
            bytes_text(leak.nbytes),
            str(leak.count),
            _wrapped(", ".join((leak.kind, *leak.names))),
            _wrapped(f"{leak.purpose} of {leak.owner}"),
            _wrapped(leak.place or NOWHERE, 11),
            ""
            if leak.slope_per_pass is None
            else f"{bytes_text(round(leak.slope_per_pass))} (R² {leak.r_squared:.2f})",
            _wrapped("; ".join(leak.held_by), 11 if leak.held_by else 0),
            _wrapped(leak.library),
        )
        for leak in leaks[:_N_ROWS]
    ]
    head = ("verdict", "bytes", "count", "what", "for", "made at", "a pass", "held by", "library")
    return (
        f"<h3>Not freed: {counted(sum(leak.count for leak in leaks), 'allocation')}</h3>"
        + html_table(head, rows, _texts(1, 2, 6))
        + _more(len(leaks))
    )


def _wrapped(text: str, width: int = 5) -> Html:
    """A cell that breaks its lines wherever the page is too narrow for them, and has ``width`` em at least."""
    style = f"white-space:normal;overflow-wrap:anywhere;min-width:{width}em"
    return Html(f'<div style="{style}">{html.escape(printable(text))}</div>')


def _rows(title: str, rows: list[Row]) -> str:
    cells = [
        (
            bytes_text(row.nbytes),
            f"{row.count:,}",
            row.kind,
            row.purpose,
            row.owner,
            row.device,
            row.buffer_type,
            row.library,
        )
        for row in rows[:_N_ROWS]
    ]
    head = ("bytes", "count", "kind", "purpose", "owner", "device", "buffer type", "library")
    return f"<h3>{title}</h3>" + (
        html_table(head, cells, _texts(0, 1)) + _more(len(rows)) if cells else "<p>nothing</p>"
    )


def _by_device(report: MemoryReport) -> str:
    cells = [(*key, bytes_text(nbytes)) for key, nbytes in report.by_device().items() if nbytes]
    head = ("device", "buffer type", "purpose", "bytes")
    return "<h3>At peak by device</h3>" + html_table(head, cells, range(3)) if cells else ""


def _texts(*numbers: int) -> list[int]:
    """Columns to be set to the left: all but those of ``numbers``."""
    return [i for i in range(9) if i not in numbers]


def _more(n: int) -> str:
    return f"<p>... and {n - _N_ROWS:,} more</p>" if n > _N_ROWS else ""


def _system(report: MemoryReport) -> str:
    un = report.unaccounted
    pairs = (
        ("tracked, in memory of its own", un.tracked),
        ("tracked, mapped files", un.tracked_files),
        ("the tracker's own records", un.tracker),
        ("RssAnon", un.rss_anon),
        ("RssFile", un.rss_file),
        ("VmSwap", un.vm_swap),
        ("VmLck", un.vm_lck),
        ("unaccounted: RssAnon less these", un.anon),
    )
    rows = [(name, bytes_text(nbytes)) for name, nbytes in pairs]
    reserved = [(name, bytes_text(given), bytes_text(asked)) for name, given, asked in report.reserved_and_used()]
    contexts = [(owner, str(n)) for owner, n in report.contexts_by_owner().items()][:_N_ROWS]
    return (
        "<h3>The system since tracking began</h3>"
        + html_table(("", "bytes"), rows)
        + "<h3>Reserved against used, at peak</h3>"
        + html_table(("buffer type", "reserved", "used"), reserved)
        + "<h3>Contexts at peak</h3>"
        + html_table(("owner", "contexts"), contexts)
    )
