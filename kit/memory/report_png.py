"""A report as a picture."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kit.memory.report import MemoryReport

_MIB = 1 << 20


def report_png(report: MemoryReport) -> bytes:
    """Return a PNG: bytes live over time on the left, bytes at peak by purpose on the right."""
    out = io.BytesIO()
    report_figure(report).savefig(out, format="png", dpi=110)
    return out.getvalue()


def report_figure(report: MemoryReport) -> Figure:
    """Draw the picture; its axis of time goes from the beginning of tracking to the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    line, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    points = [(0, 0), *report.timeline]
    line.fill_between([t / 1e9 for t, _ in points], [b / _MIB for _, b in points], step="post", alpha=0.4)
    line.set(xlabel="seconds", ylabel="MiB live", xlim=(0, max(points[-1][0], 1) / 1e9), ylim=(0, None))
    totals: dict[str, float] = {}
    for row in report.at_peak:
        totals[row.purpose] = totals.get(row.purpose, 0) + row.nbytes / _MIB
    bars.barh(list(totals), list(totals.values()))
    bars.set(xlabel="MiB at peak")
    bars.invert_yaxis()
    return figure
