"""HTML in small pieces: everything escaped, styles inline, no script, nothing from the network."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

_CELL = "text-align:{};padding:2px 12px 2px 0;vertical-align:top;white-space:nowrap"
_TABLE = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;border-collapse:collapse"


def escape(text: object) -> str:
    """Return ``text`` safe as content and as a quoted attribute."""
    return html.escape(str(text), quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> str:
    """Return a table of escaped cells; columns in ``right`` are aligned to the right."""
    styles = [_CELL.format("right" if i in right else "left") for i in range(len(head))]
    heads = "".join(f'<th style="{style}">{escape(cell)}</th>' for style, cell in zip(styles, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{s}">{escape(c)}</td>' for s, c in zip(styles, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table style="{_TABLE}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def details(summary: str, content: str, opened: bool = False) -> str:
    """Return ``content`` (HTML) that unfolds under ``summary`` (text)."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>"


def data_uri(png: bytes) -> str:
    """Return a PNG as the address of itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def still(png: bytes, title: str, width_inches: float) -> str:
    """Return an image that carries its own bytes."""
    width = round(width_inches * 96)
    return f'<img src="{data_uri(png)}" alt="{escape(title)}" width="{width}" style="max-width:100%;height:auto">'


def still_pair(light: bytes, dark: bytes, title: str, width_inches: float) -> str:
    """Return an image that follows the reader's light or dark setting."""
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{data_uri(dark)}">'
    return f"<picture>{source}{still(light, title, width_inches)}</picture>"
