"""Attention of one block: a small map for each head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kit.errors import UnknownStage
from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme
from kit.views.tokens import pad, token_text

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from kit.models.session.run import Run

_MAP, _GAP, _LEFT, _TOP, _BOTTOM = 1.35, 0.28, 0.85, 0.85, 0.75
_COLUMNS = 5
_LABELLED = 14  # tokens: more labels would overlap


@dataclass(frozen=True, repr=False, eq=False)
class AttentionView(View):
    """``scores`` (heads, queries, keys): how much each token (row) looks at each earlier one (column)."""

    stage: str
    tokens: tuple[str, ...]
    scores: npt.NDArray[np.float32]

    @classmethod
    def of(cls, run: Run, block: int) -> AttentionView:
        """Take the maps of one block from a run that kept its scores.

        Raises:
            UnknownStage: they were not kept.
        """
        name = f"blk.{block}.attn.scores"
        if name not in run.stages:
            raise UnknownStage(f"{name!r} was not kept; run(..., keep=['{name}'])")
        tokens = run.pieces or tuple(str(token) for token in run.tokens)
        return cls(name, tokens, np.array(run[name]))

    @property
    def n_heads(self) -> int:
        """Number of maps."""
        return int(self.scores.shape[0])

    @property
    def title(self) -> str:
        """Names the stage."""
        return f"Attention: {self.stage}, {self.n_heads} heads"

    def keys(self) -> tuple[str, ...]:
        """Return a text per key; for keys from before this run, their position: ``@3``."""
        n_before = int(self.scores.shape[2]) - len(self.tokens)
        return (*(f"@{i}" for i in range(n_before)), *self.tokens)

    def text(self) -> str:
        """Return what each head looks at most after the last token."""
        keys = self.keys()
        lines = [self.title, f"after the last token, {token_text(self.tokens[-1])!r}, each head looks most at:"]
        for head, row in enumerate(self.scores[:, -1]):
            best = np.argsort(-row, kind="stable")[:3]
            looks = "  ".join(f"{pad(token_text(keys[i], 12), 12)} {row[i]:4.0%}" for i in best)
            lines.append(f"  head {head:>2}  {looks}")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """Tokens and scores, rounded to five decimals."""
        return {
            "stage": self.stage,
            "tokens": list(self.tokens),
            "scores": np.round(self.scores.astype(float), 5).tolist(),
        }

    def size(self) -> tuple[float, float]:
        """A grid of at most five maps in a row."""
        columns, rows = self._grid()
        width = _LEFT + columns * (_MAP + _GAP)
        return max(width, 4.6), _TOP + rows * (_MAP + _GAP) - _GAP + _BOTTOM

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """A map per head; words at the left and below where there is room for them."""
        from kit.views import paint

        columns, _ = self._grid()
        paint.heading(canvas, self, theme, "row: the token that looks; column: the token looked at; bright: much")
        n_queries, n_keys = self.scores.shape[1:]
        labelled = n_keys <= _LABELLED
        words = [paint.fit(paint.drawable(token_text(t)), 7, _LEFT - 0.2) for t in self.keys()]
        for head in range(self.n_heads):
            row, column = divmod(head, columns)
            left, top = _LEFT + column * (_MAP + _GAP), _TOP + row * (_MAP + _GAP)
            axes = paint.axes_at(canvas, self, left, top, _MAP, _MAP)
            future = np.triu(np.ones((n_queries, n_keys), bool), n_keys - n_queries + 1)
            axes.pcolormesh(np.ma.array(self.scores[head], mask=future), cmap="viridis", vmin=0, vmax=1)
            axes.set_ylim(n_queries, 0)
            first, last = column == 0, head + columns >= self.n_heads
            axes.set_yticks(np.arange(n_queries) + 0.5 if labelled and first else [])
            axes.set_xticks(np.arange(n_keys) + 0.5 if labelled and last else [])
            if labelled and first:
                axes.set_yticklabels(words[n_keys - n_queries :])
            if labelled and last:
                axes.set_xticklabels(words, rotation=90)
            paint.bare(axes, theme)
            axes.set_title(f"head {head}", fontsize=8, pad=3, color=theme.ink)
            axes.tick_params(labelsize=7, labelcolor=theme.muted)
        if not labelled:
            canvas.text(_LEFT / self.size()[0], 0.02, f"{n_keys} tokens", color=theme.muted, fontsize=8)

    def table(self) -> str:
        """What each head looks at most after the last token."""
        keys = self.keys()
        rows = []
        for head, row in enumerate(self.scores[:, -1]):
            best = np.argsort(-row, kind="stable")[:3]
            rows.append(
                (str(head), *(f"{token_text(keys[i], 16)} {row[i]:.0%}" for i in best), *("",) * (3 - len(best)))
            )
        return markup.table(("head", "looks most at", "then", "then"), rows)

    def _grid(self) -> tuple[int, int]:
        columns = min(self.n_heads, _COLUMNS)
        return columns, math.ceil(self.n_heads / columns)
