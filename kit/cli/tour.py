"""``kit demo``."""

from __future__ import annotations

from pathlib import Path

import click

from kit.cli.group import main
from kit.cli.options import page_path, require_writable, threads_option


@main.command()
@click.option("--out", type=page_path, default=Path("kit-demo.html"), show_default=True)
@click.option("--prompt", help="What the model goes on from.")
@click.option("--model", "name", default="smollm2-135m", show_default=True, help="A name or a path.")
@threads_option
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
def demo(out: Path, prompt: str | None, name: str, threads: int | None, opens: bool) -> None:
    """The whole tour on a small model: devices, file, answer, every stage, memory; writes a page."""
    require_writable(out, "--out")
    from kit.views.demo import PROMPT, run_demo
    from kit.views.demo_page import DemoPage
    from kit.views.terminal import console, page_line

    screen = console()
    told = run_demo(prompt or PROMPT, name, screen, threads)
    page = DemoPage(told).html()
    out.write_text(page, encoding="utf-8")
    screen.print(page_line(out.resolve(), page))
    if opens:
        click.launch(out.resolve().as_uri())
