"""Bytes by what they are for, as bars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kit.units import bytes_text
from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from kit.core.ledger import Resource

_WHAT = {
    "weights": "the model's matrices, mapped from the file",
    "kv cache": "keys and values of every token, for n_ctx tokens",
    "compute": "scratch for the largest pass",
    "inputs": "token ids, positions, mask",
    "metadata": "tensor records of all contexts; no data",
    "staging": "on the way between file, host and device",
}


@dataclass(frozen=True)
class PurposeBar:
    """Bytes of one purpose, in how many resources, and what they are."""

    purpose: str
    nbytes: int
    n_resources: int
    buffer_types: str

    @property
    def what(self) -> str:
        """One line for a newcomer."""
        return _WHAT.get(self.purpose, "")


@dataclass(frozen=True, repr=False)
class PurposeBars(View):
    """Live bytes by purpose, largest first. A buffer laid over a mapped file counts once."""

    bars: tuple[PurposeBar, ...]

    @classmethod
    def of(cls, resources: Iterable[Resource]) -> PurposeBars:
        """Sum up what is live, as `kit.memory.live` gives it."""
        groups: dict[str, list[Resource]] = {}
        for resource in resources:
            groups.setdefault(resource.purpose, []).append(resource)
        bars = []
        for purpose, group in groups.items():
            types = ", ".join(dict.fromkeys(r.buffer_type for r in group if r.buffer_type))
            bars.append(PurposeBar(purpose, sum(r.nbytes for r in group), len(group), types))
        return cls(tuple(sorted(bars, key=lambda bar: -bar.nbytes)))

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(bar.nbytes for bar in self.bars)

    @property
    def title(self) -> str:
        """Names the picture and the sum."""
        return f"Live memory: {bytes_text(self.nbytes)}" if self.bars else "Live memory: nothing is live"

    def text(self) -> str:
        """Return a line per purpose, with a bar."""
        largest = max((bar.nbytes for bar in self.bars), default=1) or 1
        lines = [self.title]
        for bar in self.bars:
            drawn = "█" * max(1, round(24 * bar.nbytes / largest))
            lines.append(f"  {bar.purpose:<9} {bytes_text(bar.nbytes):>10}  {drawn:<24}  {bar.what}".rstrip())
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The bars."""
        return {"nbytes": self.nbytes, "bars": [asdict(bar) for bar in self.bars]}

    def size(self) -> tuple[float, float]:
        """A fixed width, a line per purpose."""
        return 7.2, 0.75 + 0.36 * max(1, len(self.bars))

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """Horizontal bars, the bytes written at their ends."""
        from kit.views import paint

        paint.heading(canvas, self, theme)
        if not self.bars:
            canvas.text(0.02, 0.3, "every context, buffer, mapping and scheduler was closed", color=theme.muted)
            return
        axes = paint.axes_at(canvas, self, 1.0, 0.5, 4.9, 0.36 * len(self.bars))
        largest = max(bar.nbytes for bar in self.bars) or 1
        colours = [theme.series[i % len(theme.series)] for i in range(len(self.bars))]
        axes.barh(range(len(self.bars)), [bar.nbytes for bar in self.bars], height=0.62, color=colours)
        for y, bar in enumerate(self.bars):
            axes.text(bar.nbytes + largest * 0.012, y, bytes_text(bar.nbytes), va="center", fontsize=9, color=theme.ink)
        axes.set_yticks(range(len(self.bars)), [bar.purpose for bar in self.bars])
        axes.set_ylim(len(self.bars) - 0.5, -0.5)
        axes.set_xlim(0, largest * 1.0)
        axes.set_xticks([])
        paint.bare(axes, theme)
        axes.tick_params(axis="y", labelcolor=theme.ink, labelsize=9)

    def table(self) -> str:
        """A row per purpose."""
        rows = [(b.purpose, bytes_text(b.nbytes), str(b.n_resources), b.buffer_types, b.what) for b in self.bars]
        return markup.table(("purpose", "bytes", "resources", "buffer types", "what it is"), rows, right=(1, 2))
