"""What a run kept, as one picture: its logit lens and the attention of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.units import shape_text
from kit.views import markup
from kit.views.attention import AttentionView
from kit.views.form import View
from kit.views.lens_grid import LensGrid
from kit.views.theme import Theme
from kit.views.tokens import token_text

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from kit.models.session.run import Run

_N_MAPS = 4  # blocks of attention maps in one picture
_N_NEXT = 5


@dataclass(frozen=True)
class Guess:
    """A token that may come next; ``text`` is its number: a run has no names for tokens it did not read."""

    text: str
    probability: float


@dataclass(frozen=True, repr=False)
class NextTokens(View):
    """The likeliest tokens after the last one."""

    guesses: tuple[Guess, ...]

    @classmethod
    def of(cls, run: Run) -> NextTokens:
        """Take them from the last row of logits."""
        logits = run.logits[-1].astype(np.float64)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        best = np.argsort(-shares, kind="stable")[:_N_NEXT]
        return cls(tuple(Guess(f"#{i}", float(shares[i])) for i in best))

    @property
    def title(self) -> str:
        """Names the picture."""
        return "Likeliest next tokens"

    def text(self) -> str:
        """Return a line per token."""
        return "\n".join([self.title, *(f"  {token_text(g.text):<16} {g.probability:6.1%}" for g in self.guesses)])

    def data(self) -> dict[str, Any]:
        """Texts and probabilities."""
        return {"guesses": [[g.text, round(g.probability, 6)] for g in self.guesses]}

    def size(self) -> tuple[float, float]:
        """A line per token."""
        return 5.0, 0.65 + 0.28 * len(self.guesses)

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """Horizontal bars."""
        from kit.views import paint

        paint.heading(canvas, self, theme)
        axes = paint.axes_at(canvas, self, 1.3, 0.45, 3.0, 0.28 * len(self.guesses))
        axes.barh(range(len(self.guesses)), [g.probability for g in self.guesses], height=0.62, color=theme.accent)
        for y, guess in enumerate(self.guesses):
            axes.text(guess.probability + 0.02, y, f"{guess.probability:.1%}", va="center", fontsize=8, color=theme.ink)
        words = [paint.fit(paint.drawable(token_text(g.text)), 8, 1.1) for g in self.guesses]
        axes.set_yticks(range(len(words)), words)
        axes.set_ylim(len(words) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        paint.bare(axes, theme)

    def table(self) -> str:
        """A row per token."""
        return markup.table(
            ("token", "probability"), [(token_text(g.text), f"{g.probability:.1%}") for g in self.guesses], right=(1,)
        )


@dataclass(frozen=True, repr=False)
class RunView(View):
    """Pictures under one another, and the list of kept stages."""

    tokens: tuple[str, ...]
    stages: tuple[tuple[str, tuple[int, ...]], ...]
    parts: tuple[View, ...]
    n_hidden: int = 0

    @classmethod
    def of(cls, run: Run) -> RunView:
        """Take the lens if residuals were kept, attention if scores were (first, last and between), else guesses."""
        tokens = run.pieces or tuple(str(token) for token in run.tokens)
        parts: list[View] = [LensGrid.of(run)] if any(n.endswith(".resid") for n in run.names) else [NextTokens.of(run)]
        blocks = [int(name.split(".")[1]) for name in run.names if name.endswith(".attn.scores")]
        shown = sorted(
            {blocks[i] for i in np.linspace(0, len(blocks) - 1, _N_MAPS).round().astype(int)} if blocks else []
        )
        parts += [AttentionView.of(run, block) for block in shown]
        stages = tuple((name, value.shape) for name, value in run.stages.items())
        return cls(tokens, stages, tuple(parts), len(blocks) - len(shown))

    @property
    def title(self) -> str:
        """Names the run."""
        return f"Run of {len(self.tokens)} tokens, {len(self.stages)} stages kept"

    def text(self) -> str:
        """Return the parts one after the other."""
        words = " ".join(token_text(token, 12) for token in self.tokens[-24:])
        return "\n\n".join([f"{self.title}\n  {words}", *(part.text() for part in self.parts)])

    def data(self) -> dict[str, Any]:
        """Stages with shapes, and the data of the parts."""
        return {
            "tokens": list(self.tokens),
            "stages": {name: list(shape) for name, shape in self.stages},
            "parts": [{"view": type(p).__name__, "title": p.title, **p.data()} for p in self.parts],
        }

    def size(self) -> tuple[float, float]:
        """As wide as the widest part, as high as all."""
        sizes = [part.size() for part in self.parts]
        return max(width for width, _ in sizes), sum(height for _, height in sizes)

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """Each part in its own piece of the figure."""
        from kit.views import paint

        sizes = [part.size() for part in self.parts]
        for part, piece in zip(self.parts, paint.stack(canvas, sizes), strict=True):
            part.paint(piece, theme)

    def table(self) -> str:
        """The tables of the parts, and the stages."""
        tables = [f"<p>{markup.escape(part.title)}</p>{part.table()}" for part in self.parts]
        rows = [(name, shape_text(shape)) for name, shape in self.stages]
        return "".join(tables) + markup.details(f"{len(rows)} stages kept", markup.table(("stage", "shape"), rows))
