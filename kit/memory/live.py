"""What is live now, as a table."""

from __future__ import annotations

from kit.core import ledger
from kit.core.ledger import Resource
from kit.tables import html_table, text_table
from kit.units import bytes_text

_LEFT = (0, 2, 3, 4, 5, 6)  # all but the bytes


class Live(tuple[Resource, ...]):
    """Live native resources, oldest first; empty when everything was closed."""

    __slots__ = ()
    _HEAD = ("kind", "bytes", "purpose", "owner", "name", "buffer type", "library")

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(resource.nbytes for resource in self)

    def by_purpose(self) -> dict[str, int]:
        """Bytes by purpose, largest first."""
        totals: dict[str, int] = {}
        for resource in self:
            totals[resource.purpose] = totals.get(resource.purpose, 0) + resource.nbytes
        return dict(sorted(totals.items(), key=lambda pair: -pair[1]))

    def rows(self) -> list[tuple[str, ...]]:
        """The table without its head."""
        return [(r.kind, bytes_text(r.nbytes), r.purpose, r.owner, r.name, r.buffer_type, r.library) for r in self]

    def text(self) -> str:
        """The table as text; says so when nothing is live."""
        if not self:
            return "nothing is live"
        return text_table(self._HEAD, self.rows(), _LEFT)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        if not self:
            return "<p>nothing is live</p>"
        return html_table(self._HEAD, self.rows(), _LEFT)


def live() -> Live:
    """Return every native resource kit has opened and not yet closed.

    While a tracker is active, also what other copies of ggml have allocated since it began.
    """
    from kit.memory import foreign_live

    return Live([*ledger.live(), *foreign_live.foreign_resources()])
