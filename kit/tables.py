"""Tables of strings as text and as HTML: escaped, self-contained."""

from __future__ import annotations

import base64
import html
from collections.abc import Collection, Sequence

_CELL = "padding:2px 10px;white-space:nowrap;vertical-align:top;text-align:"
_LEFT: tuple[int, ...] = (0,)


class Html(str):
    """A cell that is HTML already."""

    __slots__ = ()


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = _LEFT) -> str:
    """Return aligned columns: those in ``left`` to the left, others to the right; an empty head has no line."""
    table = [head, *rows] if head else list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        sized = enumerate(zip(row, widths, strict=True))
        lines.append("  ".join(cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in sized).rstrip())
    return "\n".join(lines)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = _LEFT) -> str:
    """Return the table, escaped, as HTML that a notebook keeps when it is not trusted; columns as in `text_table`."""
    body = "".join(f"<tr>{_html_cells('td', row, left)}</tr>" for row in rows)
    return f"<table><thead><tr>{_html_cells('th', head, left)}</tr></thead><tbody>{body}</tbody></table>"


def _html_cells(tag: str, row: Sequence[str], left: Collection[int]) -> str:
    return "".join(
        f'<{tag} style="{_CELL}{"left" if i in left else "right"}">'
        f"{cell if isinstance(cell, Html) else html.escape(cell)}</{tag}>"
        for i, cell in enumerate(row)
    )


def png_tag(png: bytes, alt: str) -> str:
    """Return an image that carries its own bytes."""
    data = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(alt)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def html_page(title: str, body: str) -> str:
    """Return a whole page around ``body``, which is HTML already."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title></head>'
        f'<body style="font-family:sans-serif;max-width:70em;margin:2em auto">'
        f"<h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"
    )
