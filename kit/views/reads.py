"""How a file was read: where each reader stood in it as time went by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from kit.models.weights.read_trace import ReadTrace


@dataclass(frozen=True, repr=False)
class ReadsView(View):
    """The reads of a load; from each reader's line one sees whether it went straight from front to back."""

    trace: ReadTrace

    @classmethod
    def of(cls, trace: ReadTrace) -> ReadsView:
        """Make the picture of ``model.weights.trace``."""
        return cls(trace)

    @property
    def title(self) -> str:
        """Says how many readers, how much, and in what order."""
        return self.trace.title

    def text(self) -> str:
        """The trace's own table and lines."""
        return self.trace.text()

    def data(self) -> dict[str, Any]:
        """Every read of every reader."""
        return {
            "sequential": self.trace.sequential,
            "readers": [
                {
                    "number": reader.number,
                    "reads": [
                        {
                            "file": str(read.path).encode("utf-8", "backslashreplace").decode(),
                            "offset": read.offset,
                            "nbytes": read.nbytes,
                            "start_ns": read.start_ns,
                            "end_ns": read.end_ns,
                        }
                        for read in reader.reads
                    ],
                }
                for reader in self.trace.readers
            ],
        }

    def size(self) -> tuple[float, float]:
        """Fixed."""
        return 6.6, 3.3

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """A line per reader over time, rising through the bytes of the files laid one after another."""
        from kit.views import paint

        paint.heading(canvas, self, theme, "a colour per reader; each read is a line from its first byte to its last")
        axes = paint.axes_at(canvas, self, 0.85, 0.65, 5.5, 2.1)
        begins = self._begins()
        for reader in self.trace.readers:
            colour = theme.series[(reader.number - 1) % len(theme.series)]
            for read in reader.reads:
                at = (begins[read.path] + read.offset) / 2**20
                times = [read.start_ns / 1e6, read.end_ns / 1e6]
                axes.plot(times, [at, at + read.nbytes / 2**20], color=colour, lw=1.8, solid_capstyle="butt")
        axes.locator_params(nbins=5)
        axes.set_xlabel("ms since reading began")
        axes.set_ylabel("position, MiB")
        paint.bare(axes, theme, grid="y")

    def table(self) -> str:
        """A row per reader and file."""
        head = ("reader", "file", "bytes", "reads", "size", "time", "rate")
        return markup.table(head, self.trace.rows(), right=(0, 3, 4, 5, 6))

    def _begins(self) -> dict[object, int]:
        """Return where each file begins when they are laid one after another in the order of reading."""
        ends: dict[object, int] = {}
        for reader in self.trace.readers:
            for read in reader.reads:
                ends[read.path] = max(ends.get(read.path, 0), read.end)
        begins, total = {}, 0
        for path, end in ends.items():
            begins[path] = total
            total += end
        return begins
