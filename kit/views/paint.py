"""Drawing with matplotlib's object API: no global figures, no fonts fetched, the same bytes every time."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
from matplotlib import colormaps, font_manager, ft2font
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, FigureBase

from kit.views.theme import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kit.views.form import View

FONT = "DejaVu Sans"  # comes with matplotlib
MAP = "cividis"  # the same to people with and without colour vision deficiency (Nunez et al., 2018)

_SETTINGS = {
    "font.family": FONT,
    "font.size": 9,
    "text.parse_math": False,  # a token "$" is a token
    "svg.fonttype": "path",
    "svg.hashsalt": "kit",
    "axes.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
}


def png(view: View, theme: Theme, dpi: int) -> bytes:
    """Return ``view`` as PNG."""
    with _settings():
        figure = _drawn(view, theme)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=dpi, facecolor=theme.background, metadata={"Software": None})
    return stream.getvalue()


def svg(view: View, theme: Theme) -> str:
    """Return ``view`` as SVG, text as outlines."""
    with _settings():
        figure = _drawn(view, theme)
        stream = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", facecolor=theme.background, metadata=nothing)
    drawn = stream.getvalue().decode()
    return re.sub(r"^.*?(?=<svg)", "", drawn, count=1, flags=re.DOTALL)  # the DOCTYPE names a remote file


def bare(axes: Axes, theme: Theme, *, grid: Literal["x", "y"] | None = None) -> None:
    """Take away what carries no information; colour the rest."""
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, colors=theme.muted, labelsize=8)
    axes.set_facecolor("none")
    axes.title.set_color(theme.ink)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(theme.muted)
        label.set_fontsize(8)
    if grid:
        axes.grid(axis=grid, color=theme.line, linewidth=0.6)
        axes.set_axisbelow(True)


def heading(canvas: FigureBase, view: View, theme: Theme, note: str = "") -> None:
    """Write the title at the top left, 0.22 inches below the edge, and a note under it."""
    height = view.size()[1]
    x = 0.14 / view.size()[0]
    canvas.text(x, 1 - 0.12 / height, drawable(view.title), color=theme.ink, fontsize=11, weight="bold", va="top")
    if note:
        canvas.text(x, 1 - 0.36 / height, drawable(note), color=theme.muted, fontsize=8, va="top")


def axes_at(canvas: FigureBase, view: View, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes at a place given in inches from the top left corner of ``view``."""
    full_width, full_height = view.size()
    box = (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    return canvas.add_axes(box)


def stack(canvas: FigureBase, sizes: list[tuple[float, float]]) -> list[FigureBase]:
    """Return a piece of ``canvas`` for each size (width, height; inches), one under the other, all from the left."""
    width = max(size[0] for size in sizes)
    lines = canvas.subfigures(len(sizes), 1, squeeze=False, hspace=0, height_ratios=[size[1] for size in sizes])
    pieces = []
    for (own, _), (line,) in zip(sizes, lines, strict=True):
        rest = max(width - own, 1e-6)
        pieces.append(line.subfigures(1, 2, squeeze=False, wspace=0, width_ratios=[own, rest])[0, 0])
    return pieces


def shade(share: float, cmap: str = MAP) -> tuple[str, str]:
    """Return the colour for ``share`` (0 to 1) and black or white, whichever reads better on it."""
    colour = colormaps[cmap](min(max(share, 0.0), 1.0))
    return to_hex(colour), ink_on(colour)


def ink_on(colour: Any) -> str:
    """Return black or white: the one with more contrast on ``colour`` (WCAG's relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def drawable(text: str) -> str:
    """Return ``text`` with characters the font lacks replaced by □."""
    known = _known_characters()
    return "".join(c if ord(c) in known else "□" for c in text)


def text_width(text: str, points: float) -> float:
    """Return the width of ``text`` in inches."""
    font = _font()
    font.set_size(points, 72)
    font.set_text(drawable(text), 0.0)
    return float(font.get_width_height()[0]) / 64 / 72


def fit(text: str, points: float, inches: float) -> str:
    """Return ``text`` cut so that it is no wider than ``inches``."""
    if text_width(text, points) <= inches:
        return text
    kept = text
    while kept and text_width(kept + "…", points) > inches:
        kept = kept[:-1]
    return kept + "…"


def _drawn(view: View, theme: Theme) -> Figure:
    figure = Figure(figsize=view.size())
    FigureCanvasAgg(figure)
    view.paint(figure, theme)
    return figure


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Draw with our settings whatever the user's are."""
    plain = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
    with matplotlib.rc_context({**plain, **_SETTINGS}):
        yield


@cache
def _font() -> Any:
    return ft2font.FT2Font(font_manager.findfont(FONT))


@cache
def _known_characters() -> frozenset[int]:
    return frozenset(_font().get_charmap())
