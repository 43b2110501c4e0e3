"""The logit lens as a grid: what each block would say next after each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.errors import UnknownStage
from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme
from kit.views.tokens import pad, token_text

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from kit.models.session.run import Run

_SHOWN = 16  # tokens: more columns would leave no room for words
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 0.86, 0.215, 0.62, 0.72


@dataclass(frozen=True)
class LensCell:
    """The likeliest next token, and its probability."""

    text: str
    probability: float


@dataclass(frozen=True, repr=False)
class LensGrid(View):
    """``cells[row][column]``: a row per kept block, first block first; a column per token of the run.

    The lens puts a residual through the model's own last norm and output matrix (nostalgebraist, "interpreting
    GPT: the logit lens", 2020).
    """

    tokens: tuple[str, ...]
    blocks: tuple[str, ...]
    cells: tuple[tuple[LensCell, ...], ...]

    @classmethod
    def of(cls, run: Run) -> LensGrid:
        """Take the grid from a run that kept residuals.

        Raises:
            UnknownStage: no residual was kept.
        """
        blocks = tuple(name for name in run.names if name.endswith(".resid"))
        if not blocks:
            raise UnknownStage("no residual was kept; run(..., keep=['blk.*.resid'])")
        cells = tuple(tuple(LensCell(e[0].text, e[0].probability) for e in row) for row in run.lens(1))
        tokens = run.pieces or tuple(str(token) for token in run.tokens)
        return cls(tokens, blocks, cells)

    @property
    def title(self) -> str:
        """Names the picture and its size."""
        return f"Logit lens: {len(self.blocks)} blocks, {len(self.tokens)} tokens"

    @property
    def n_hidden(self) -> int:
        """Tokens at the front that the picture leaves out."""
        return max(0, len(self.tokens) - _SHOWN)

    def text(self) -> str:
        """Return the last eight tokens of the grid, the last block on top."""
        first = max(0, len(self.tokens) - 8)
        head = " " * 7 + " ".join(pad(token_text(t, 11), 11) for t in self.tokens[first:])
        lines = [self.title, head.rstrip()]
        for block, row in zip(reversed(self.blocks), reversed(self.cells), strict=True):
            cells = (pad(f"{token_text(c.text, 7)} {c.probability:.0%}", 11) for c in row[first:])
            lines.append(f"{_number(block):>6} " + " ".join(cells).rstrip())
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """Tokens, block names, texts and probabilities."""
        return {
            "tokens": list(self.tokens),
            "blocks": list(self.blocks),
            "texts": [[c.text for c in row] for row in self.cells],
            "probabilities": [[round(c.probability, 6) for c in row] for row in self.cells],
        }

    def size(self) -> tuple[float, float]:
        """Wide enough for the words, and for the title over few tokens."""
        columns = len(self.tokens) - self.n_hidden
        return max(4.6, _LEFT + columns * _CELL_WIDTH + 0.2), _TOP + len(self.blocks) * _CELL_HEIGHT + 0.5

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """A heat map of probabilities with the words in it; the tokens read stand below."""
        from kit.views import paint

        shown, rows = self.tokens[self.n_hidden :], len(self.blocks)
        note = "likeliest next token after each block; colour: its probability"
        if self.n_hidden:
            note += f"; the last {len(shown)} tokens"
        paint.heading(canvas, self, theme, note)
        axes = paint.axes_at(canvas, self, _LEFT, _TOP, len(shown) * _CELL_WIDTH, rows * _CELL_HEIGHT)
        grid = [[c.probability for c in row[self.n_hidden :]] for row in self.cells]
        axes.pcolormesh(grid, cmap=paint.MAP, vmin=0, vmax=1, edgecolors=theme.background, linewidth=0.8)
        for y, row in enumerate(self.cells):
            for x, cell in enumerate(row[self.n_hidden :]):
                word = paint.fit(paint.drawable(token_text(cell.text)), 7.5, _CELL_WIDTH - 0.08)
                ink = paint.shade(cell.probability)[1]
                axes.text(x + 0.5, y + 0.47, word, color=ink, fontsize=7.5, ha="center", va="center")
        words = [paint.fit(paint.drawable(token_text(t)), 8, _CELL_WIDTH - 0.06) for t in shown]
        axes.set_xticks([x + 0.5 for x in range(len(shown))], words)
        axes.set_yticks([y + 0.5 for y in range(rows)], [_number(block) for block in self.blocks])
        axes.set_ylabel("block")
        paint.bare(axes, theme)
        axes.tick_params(axis="x", labelcolor=theme.ink)

    def table(self) -> str:
        """The grid itself as HTML, the probability of each cell in its tooltip."""
        from kit.views import paint

        cell_style = "padding:2px 6px;min-width:5.5em;text-align:center;white-space:nowrap;background:{};color:{}"
        rows = []
        for block, row in zip(reversed(self.blocks), reversed(self.cells), strict=True):
            cells = []
            for cell in row:
                fill, ink = paint.shade(cell.probability)
                label = markup.escape(f"{block}: {cell.text!r} {cell.probability:.1%}")
                style = cell_style.format(fill, ink)
                cells.append(f'<td style="{style}" title="{label}">{markup.escape(token_text(cell.text, 14))}</td>')
            head = f'<th style="padding:0 8px;text-align:right;font-weight:normal">{markup.escape(_number(block))}</th>'
            rows.append(f"<tr>{head}{''.join(cells)}</tr>")
        foot = "".join(
            f'<th style="padding:4px 6px;text-align:center;white-space:nowrap">{markup.escape(token_text(t, 14))}</th>'
            for t in self.tokens
        )
        style = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:11px;border-collapse:separate"
        return (
            f'<div style="overflow-x:auto"><table style="{style};border-spacing:1px">'
            f"<tbody>{''.join(rows)}</tbody><tfoot><tr><th></th>{foot}</tr></tfoot></table></div>"
        )


def _number(block: str) -> str:
    parts = block.split(".")
    return parts[1] if len(parts) > 2 else block
