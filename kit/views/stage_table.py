"""All stages of one pass: shape, time, size of the values, and what the model would say next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.units import shape_text, time_text
from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme
from kit.views.tokens import pad, token_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    from kit.models.session.walk import Step

_LENS_HEIGHT, _RMS_HEIGHT, _ROW_HEIGHT, _COLUMN_WIDTH = 1.15, 0.5, 0.17, 0.26
_LEFT, _TOP, _GAP, _BOTTOM = 1.05, 0.72, 0.16, 0.42


@dataclass(frozen=True)
class StageRow:
    """One stage: ``rms`` is the root mean square of its finite values; ``says`` is the lens' likeliest token."""

    name: str
    shape: tuple[int, ...]
    time_ns: int
    rms: float
    says: str | None = None
    probability: float | None = None

    @property
    def block(self) -> int | None:
        """Number of the block the stage belongs to."""
        parts = self.name.split(".")
        return int(parts[1]) if len(parts) > 2 and parts[0] == "blk" and parts[1].isdigit() else None

    @property
    def part(self) -> str:
        """Name within the block: ``attn.q``."""
        return self.name if self.block is None else self.name.split(".", 2)[2]


@dataclass(frozen=True)
class BlockRow:
    """The stages of one block, or one stage outside the blocks, as one line."""

    name: str
    rows: tuple[StageRow, ...]

    @property
    def last(self) -> StageRow:
        """The stage at the end."""
        return self.rows[-1]

    def time_ns(self, start: str = "") -> int:
        """Return the time of the stages whose part starts with ``start``."""
        return sum(row.time_ns for row in self.rows if row.part.startswith(start))


@dataclass(frozen=True, repr=False)
class StageTable(View):
    """One row per stage of a pass over ``tokens``, in the order of computation."""

    tokens: tuple[str, ...]
    rows: tuple[StageRow, ...]

    @classmethod
    def of(cls, steps: Iterable[Step], tokens: Iterable[str] = ()) -> StageTable:
        """Walk through ``steps`` to the end, looking at each value."""
        return cls(tuple(tokens), tuple(stage_row(step) for step in steps))

    @property
    def title(self) -> str:
        """Names the picture, the number of stages and the time of all."""
        return f"One pass: {len(self.rows)} stages in {time_text(self.time_ns)}"

    @property
    def time_ns(self) -> int:
        """Time of all stages."""
        return sum(row.time_ns for row in self.rows)

    def blocks(self) -> list[BlockRow]:
        """Return the stages folded: a line per block, and the stages outside the blocks."""
        groups: dict[str, list[StageRow]] = {}
        for row in self.rows:
            groups.setdefault(row.name if row.block is None else f"blk.{row.block}", []).append(row)
        return [BlockRow(name, tuple(rows)) for name, rows in groups.items()]

    def text(self) -> str:
        """Return a line per stage."""
        lines = [self.title]
        for row in self.rows:
            says = f"  {pad(token_text(row.says, 16), 16)} {row.probability:4.0%}" if row.says is not None else ""
            shape = shape_text(row.shape)
            lines.append(f"{pad(row.name, 20)}  {shape:<14}  {time_text(row.time_ns):>9}  {row.rms:>10.4g}{says}")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """Tokens and rows."""
        return {"tokens": list(self.tokens), "rows": [asdict(row) for row in self.rows]}

    def size(self) -> tuple[float, float]:
        """A column per block and a row per part."""
        blocks, parts = self._axes()
        width = _LEFT + max(len(blocks), 14) * _COLUMN_WIDTH + 0.75
        return width, _TOP + _LENS_HEIGHT + _GAP + _RMS_HEIGHT + _GAP + len(parts) * _ROW_HEIGHT + _BOTTOM

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """Over the blocks: what each would say next, how large its residual is, how long each part took."""
        from kit.views import paint

        blocks, parts = self._axes()
        paint.heading(canvas, self, theme, "likeliest next token, size of the residual, and time, block by block")
        width = len(blocks) * _COLUMN_WIDTH
        top = _TOP
        axes = paint.axes_at(canvas, self, _LEFT, top, width, _LENS_HEIGHT)
        self._paint_lens(axes, theme)
        top += _LENS_HEIGHT + _GAP
        self._paint_rms(paint.axes_at(canvas, self, _LEFT, top, width, _RMS_HEIGHT), theme)
        top += _RMS_HEIGHT + _GAP
        axes = paint.axes_at(canvas, self, _LEFT, top, width, len(parts) * _ROW_HEIGHT)
        bar = paint.axes_at(canvas, self, _LEFT + width + 0.1, top, 0.1, len(parts) * _ROW_HEIGHT)
        self._paint_times(canvas, axes, bar, theme)

    def table(self) -> str:
        """Every stage, folded by block."""
        head = ("stage", "shape", "time", "rms", "says next", "probability")
        parts = []
        for block in self.blocks():
            cells = [
                (
                    row.name,
                    shape_text(row.shape),
                    time_text(row.time_ns),
                    f"{row.rms:.4g}",
                    "" if row.says is None else token_text(row.says),
                    "" if row.probability is None else f"{row.probability:.1%}",
                )
                for row in block.rows
            ]
            says = f", says {token_text(block.last.says)!r}" if block.last.says is not None else ""
            summary = f"{block.name}: {len(cells)} stages, {time_text(block.time_ns())}{says}"
            parts.append(markup.details(summary, markup.table(head, cells, right=(2, 3, 5))))
        return "".join(parts)

    def _axes(self) -> tuple[list[int], list[str]]:
        """Return block numbers and part names."""
        inside = [row for row in self.rows if row.block is not None]
        return sorted({row.block for row in inside if row.block is not None}), list(
            dict.fromkeys(row.part for row in inside)
        )

    def _ends(self) -> list[StageRow]:
        return [block.last for block in self.blocks() if block.last.block is not None]

    def _paint_lens(self, axes: Axes, theme: Theme) -> None:
        from kit.views import paint

        ends = self._ends()
        shares = [row.probability or 0.0 for row in ends]
        axes.bar(range(len(ends)), shares, width=0.86, color=[paint.shade(share)[0] for share in shares])
        for x, (row, share) in enumerate(zip(ends, shares, strict=True)):
            word = paint.fit(paint.drawable(token_text(row.says or "")), 8, _LENS_HEIGHT * 0.6)
            inside = paint.text_width(word, 8) + 0.12 < share * _LENS_HEIGHT
            ink, y = (paint.shade(share)[1], 0.05) if inside else (theme.ink, share + 0.05)
            axes.text(x, y, word, rotation=90, ha="center", va="bottom", fontsize=8, color=ink)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        self._finish(axes, theme, "says next")

    def _paint_rms(self, axes: Axes, theme: Theme) -> None:
        ends = self._ends()
        axes.plot(
            range(len(ends)), [max(row.rms, 1e-9) for row in ends], color=theme.accent, lw=1.4, marker="o", ms=2.5
        )
        axes.set_yscale("log")
        axes.minorticks_off()
        low, high = min(row.rms for row in ends), max(row.rms for row in ends)
        low, high = max(low, 1e-9) / 1.6, max(high, 1e-9) * 1.6
        axes.set_ylim(low, high)
        axes.set_yticks([low * 1.6, high / 1.6], [f"{value:.3g}" for value in (low * 1.6, high / 1.6)])
        self._finish(axes, theme, "residual rms")

    def _paint_times(self, canvas: FigureBase, axes: Axes, bar: Axes, theme: Theme) -> None:
        from matplotlib.colors import LogNorm

        from kit.views import paint

        blocks, parts = self._axes()
        grid = np.full((len(parts), len(blocks)), np.nan)
        for row in self.rows:
            if row.block is not None:
                grid[parts.index(row.part), blocks.index(row.block)] = max(row.time_ns, 1) / 1e3
        low = max(float(np.nanmin(grid)), 1e-3)
        norm = LogNorm(low, max(float(np.nanmax(grid)), low * 1.1))
        x = np.arange(len(blocks) + 1) - 0.5
        mesh = axes.pcolormesh(
            x, np.arange(len(parts) + 1) - 0.5, grid, cmap=paint.MAP, norm=norm, edgecolors=theme.background, lw=0.5
        )
        axes.set_ylim(len(parts) - 0.5, -0.5)
        axes.set_yticks(range(len(parts)), parts)
        axes.set_xticks(range(len(blocks)), [str(block) for block in blocks])
        axes.set_xlim(-0.5, len(blocks) - 0.5)
        axes.set_xlabel("block")
        paint.bare(axes, theme)
        canvas.colorbar(mesh, cax=bar, format=lambda us, _: time_text(round(us * 1e3)))
        paint.bare(bar, theme)
        bar.minorticks_off()

    def _finish(self, axes: Axes, theme: Theme, label: str) -> None:
        from kit.views import paint

        axes.set_xlim(-0.5, len(self._axes()[0]) - 0.5)
        axes.set_xticks([])
        axes.set_ylabel(label)
        axes.yaxis.set_label_coords(-0.6 / (len(self._axes()[0]) * _COLUMN_WIDTH), 0.5)
        paint.bare(axes, theme, grid="y")


def stage_row(step: Step) -> StageRow:
    """Return ``step`` as data; looks at its value, and through the lens where it is the residual stream."""
    value = np.asarray(step.value, np.float64)
    finite = value[np.isfinite(value)]
    rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    says: str | None = None
    probability: float | None = None
    if step.name in ("embed", "logits") or step.name.endswith((".resid", ".resid_mid")):
        entry = step.lens(1)[0]
        says, probability = entry.text, entry.probability
    return StageRow(step.name, step.shape, step.time_ns, rms, says, probability)
