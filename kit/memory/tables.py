"""Tables of strings as text and as HTML: escaped, self-contained."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

_CELL = "padding:2px 10px;text-align:right;white-space:nowrap"
_FIRST = "padding:2px 10px;text-align:left;white-space:nowrap"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns; the first to the left, the others to the right."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    return "\n".join(lines)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as HTML that a notebook keeps when it is not trusted."""
    top = "".join(f'<th style="{_FIRST if i == 0 else _CELL}">{html.escape(cell)}</th>' for i, cell in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{_FIRST if i == 0 else _CELL}">{html.escape(cell)}</td>' for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


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
