"""The attention lab as a picture: compute buffer and time of each way, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.models.attention_lab import LabReport, LabRow
from kit.units import bytes_text, time_text
from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

HEAD = ("", "copies", "nodes", "compute buffer", "time", "error")


@dataclass(frozen=True, repr=False)
class AttentionBars(View):
    """Two bars for each way to do attention."""

    report: LabReport

    @property
    def title(self) -> str:
        """Names what was computed."""
        return f"Attention of {self.report.shape}"

    def text(self) -> str:
        """Return the table."""
        return self.report.text()

    def data(self) -> dict[str, Any]:
        """The figures."""
        return self.report.data()

    def size(self) -> tuple[float, float]:
        """A fixed width, a line per way."""
        return 7.2, 1.1 + 0.36 * len(self.report.rows)

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """Bytes to the left, times to the right, written at the bars' ends."""
        from kit.views import paint

        paint.heading(canvas, self, theme)
        rows = self.report.rows
        columns = (
            ("compute buffer", 1.1, [row.compute_nbytes for row in rows], bytes_text),
            ("time", 4.4, [row.time_ns for row in rows], time_text),
        )
        for index, (name, left, values, as_text) in enumerate(columns):
            axes = paint.axes_at(canvas, self, left, 0.75, 2.0, 0.36 * len(rows))
            largest = max(values) or 1
            axes.barh(range(len(rows)), values, height=0.62, color=theme.series[index % len(theme.series)])
            for y, value in enumerate(values):
                axes.text(value + largest * 0.02, y, as_text(value), va="center", fontsize=9, color=theme.ink)
            axes.set_title(name, fontsize=9, color=theme.muted, loc="left")
            axes.set_yticks(range(len(rows)), [row.name if index == 0 else "" for row in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlim(0, largest)
            axes.set_xticks([])
            paint.bare(axes, theme)
            axes.tick_params(axis="y", labelcolor=theme.ink, labelsize=9)

    def table(self) -> str:
        """A row per way."""
        return markup.table(HEAD, [cells_of(row) for row in self.report.rows], right=(1, 2, 3, 4, 5))


def cells_of(row: LabRow) -> tuple[str, ...]:
    """Return the figures of one way as text, in the order of the table's head."""
    return (
        row.name,
        str(row.n_copies),
        str(row.n_nodes),
        bytes_text(row.compute_nbytes),
        time_text(row.time_ns),
        f"{row.nmse:.1e}",
    )
