"""What every picture has in common: one intermediate form, drawn as text, HTML, PNG, SVG and JSON."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kit.views import markup
from kit.views.theme import LIGHT, Theme

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase


class View(ABC):
    """A picture of plain data; drawing it reads nothing from a model and computes nothing.

    Subclasses are frozen data and say four things: `text`, `data`, `size` with `paint`, and `table`.
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """One line that names the picture."""

    @abstractmethod
    def text(self) -> str:
        """Return the picture as plain text."""

    @abstractmethod
    def data(self) -> dict[str, Any]:
        """Return the data of the picture, ready for JSON."""

    @abstractmethod
    def size(self) -> tuple[float, float]:
        """Return width and height in inches."""

    @abstractmethod
    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """Draw on an empty figure or part of one; the canvas has the proportions of `size`."""

    @abstractmethod
    def table(self) -> str:
        """Return the data as HTML with inline styles, everything escaped."""

    def png(self, theme: Theme = LIGHT, dpi: int = 144) -> bytes:
        """Return a PNG; the same data give the same bytes."""
        from kit.views import paint

        return paint.png(self, theme, dpi)

    def svg(self, theme: Theme = LIGHT) -> str:
        """Return an SVG that needs no font and no network."""
        from kit.views import paint

        return paint.svg(self, theme)

    def html(self) -> str:
        """Return a fragment for a notebook: a still picture, and its data to unfold."""
        return self._html_around(self.png())

    def _html_around(self, png: bytes) -> str:
        return markup.still(png, self.title, self.size()[0]) + markup.details("the same as a table", self.table())

    def json(self) -> str:
        """Return `data` as JSON."""
        return json.dumps({"view": type(self).__name__, "title": self.title, **self.data()}, ensure_ascii=False)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": self.text()}
        try:
            png = self.png()
            bundle["image/png"] = base64.b64encode(png).decode("ascii")
            bundle["text/html"] = self._html_around(png)
        except Exception as error:  # a picture that cannot be drawn must not fail the cell
            bundle["text/plain"] += f"\n(not drawn: {error})"
        return bundle

    def __repr__(self) -> str:
        return self.text()
