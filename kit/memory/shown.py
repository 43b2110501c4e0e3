"""What measurements have in common: the forms they are shown in."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

from kit.tables import html_page


class Shown:
    """Forms that follow from `text`, `to_dict`, the part of a page and the picture."""

    __slots__ = ()
    _TITLE = ""

    @abstractmethod
    def text(self) -> str:
        """As text."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """As plain data."""

    @abstractmethod
    def _drawn(self, form: str) -> bytes: ...

    @abstractmethod
    def _repr_html_(self) -> str: ...

    def json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def png(self) -> bytes:
        """The picture."""
        return self._drawn("png")

    def svg(self) -> str:
        """As `png`."""
        return self._drawn("svg").decode()

    def html(self) -> str:
        """A page of its own with picture and tables; loads nothing."""
        return html_page(self._TITLE, self._repr_html_())

    def __repr__(self) -> str:
        return self.text()
