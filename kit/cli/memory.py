"""Memory: ``kit watch``, ``costs``."""

from __future__ import annotations

from pathlib import Path

import click

from kit.cli.group import main
from kit.cli.options import page_path, require_writable


@main.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--report", type=page_path, default=Path("kit-memory.html"), show_default=True, help=".html, .json or .txt"
)
@click.option("--no-stacks", is_flag=True, help="Do not keep Python stacks.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def watch(ctx: click.Context, report: Path, no_stacks: bool, module: bool, script: str, args: tuple[str, ...]) -> None:
    """Run a Python program unchanged and report the ggml memory it leaks, whichever ggml it uses.

    Options come before SCRIPT; everything after it goes to the program. The verdict comes when the program has wholly
    ended, its threads and exit handlers too. The exit code is the program's own, or, where that is 0, 1 for leaks and
    0 for none.
    """
    require_writable(report, "--report")
    from kit.memory.watch import main as run_watched

    options = ["--output", str(report), *(["--no-stacks"] if no_stacks else []), *(["-m"] if module else [])]
    ctx.exit(run_watched([*options, "--", script, *args]))


@main.command()
@click.option("--sizes", metavar="LIST", help="As in 4KiB,1MiB,64MB.  [default: 4 KiB to 256 MiB]")
@click.option("--repeats", type=click.IntRange(1), help="Trips per kind and size.  [default: a tenth of a second]")
@click.option("--json", "as_json", is_flag=True, help="The records as JSON.")
@click.option("--html", "page", type=page_path, help="Also write the curves and tables as a page.")
def costs(sizes: str | None, repeats: int | None, as_json: bool, page: Path | None) -> None:
    """Measure what host, locked, pinned and device memory costs on this machine."""
    if page is not None:
        require_writable(page, "--html")
    wanted = None if sizes is None else _sizes(sizes)
    from kit import memory

    found = memory.costs(wanted, repeats)
    click.echo(found.json() if as_json else found.text())
    if page is not None:
        page.write_text(found.html(), encoding="utf-8")
        click.echo(f"wrote {page.resolve()}", err=True)


def _sizes(text: str) -> list[int]:
    """Read ``4KiB,1MB``; raise BadParameter for what is no size."""
    from kit.errors import ArgumentError
    from kit.units import parse_bytes

    try:
        return [parse_bytes(part) for part in text.split(",")]
    except ArgumentError as error:
        raise click.BadParameter(str(error), param_hint="--sizes") from None
