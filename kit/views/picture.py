"""Draws the demo's terminal output as an SVG: python -m kit.views.picture docs/demo.svg."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from kit.views.demo import PROMPT, run_demo
from kit.views.demo_page import DemoPage
from kit.views.terminal import page_line

WIDTH = 98
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_THEME = TerminalTheme(
    (21, 27, 35),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (201, 209, 217),
    ],
)
_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>What make demo prints</title>
<style>
.{unique_id}-matrix {{ font-family: FONT; font-size: {char_height}px; line-height: {line_height}px;
 font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-family: FONT; font-size: 16px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
""".replace("FONT", _FONT)


def terminal_svg(screen: Console, title: str) -> str:
    """Return what ``screen`` recorded as an SVG that loads nothing: it uses the reader's own monospace font."""
    return screen.export_svg(title=title, theme=_THEME, code_format=_FORMAT, unique_id="kit")


def main(out: str) -> None:
    """Run the demo on the known model and draw what it prints."""
    screen = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, markup=False, highlight=False)
    page = DemoPage(run_demo(PROMPT, "smollm2-135m", screen)).html()
    screen.print(page_line("kit-demo.html", page))
    Path(out).write_text(terminal_svg(screen, "make demo"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
