"""What this machine has and does: ``kit devices``, ``backend``, ``bench``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kit.cli.group import main
from kit.cli.options import page_path, require_writable, threads_option


@main.command()
def devices() -> None:
    """List the devices ggml sees, and what each can do."""
    from rich.text import Text

    from kit.core.devices import devices as found
    from kit.core.native import libraries
    from kit.views.terminal import console, devices_table

    screen = console()
    screen.print(devices_table(found()))
    screen.print(Text(str(libraries), "dim"))
    for device in found():
        if device.features:
            screen.print(Text(f"{device.name}: {', '.join(device.features)}", "dim"))


@main.group()
def backend() -> None:
    """Build ggml for this very machine, and choose which build kit uses."""


@backend.command("build")
@click.argument("name", type=click.Choice(["cpu"]))
@click.option("--use/--no-use", "uses", default=True, help="Use it from now on.")
def backend_build(name: str, uses: bool) -> None:
    """Build a backend of kit's own ggml from the package registry's source; about a minute or two."""
    from kit.backends.build import build_cpu
    from kit.backends.builds import use_build

    folder = build_cpu(progress=sys.stderr.isatty())
    click.echo(use_build(name) if uses else folder)


@backend.command("list")
def backend_list() -> None:
    """List the builds that are here; * marks the one kit uses."""
    from kit.backends.builds import builds
    from kit.units import bytes_text
    from kit.views.terminal import console, table

    rows = [
        ("*" if b.in_use else "", b.name, bytes_text(b.nbytes), b.problem or b.details, str(b.folder)) for b in builds()
    ]
    console().print(table(("", "build", "bytes", "what it is", "folder"), rows, right=(2,)))


@backend.command("use")
@click.argument("name")
def backend_use(name: str) -> None:
    """Use the build NAME from now on; 'wheel' is the one that came with kit."""
    from kit.backends.builds import use_build

    click.echo(use_build(name))


@backend.command("remove")
@click.argument("name")
def backend_remove(name: str) -> None:
    """Remove the build NAME."""
    from kit.backends.builds import remove_build

    click.echo(f"removed {remove_build(name)}")


@main.command()
@click.argument("file", required=False)
@click.option("--attention", is_flag=True, help="Attention with three copies, one, none, and fused.")
@click.option("--n-kv", type=click.IntRange(1), default=4096, show_default=True, help="Cells attended to.")
@click.option("--n-tokens", type=click.IntRange(1), default=1, show_default=True, help="Tokens of the pass.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--html", "page", type=page_path, help="Also write the bars and the table as a page.")
@threads_option
def bench(
    file: str | None,
    attention: bool,
    n_kv: int,
    n_tokens: int,
    as_json: bool,
    page: Path | None,
    threads: int | None,
) -> None:
    """Measure parts of the engine with the shapes of FILE; without one, with those of a model of 1B."""
    if not attention:
        raise click.UsageError("say what to measure: --attention")
    if page is not None:
        require_writable(page, "--html")
    from kit.core.backend import Backend
    from kit.core.gguf import GGUFFile
    from kit.models.architecture.config import LlamaConfig
    from kit.models.attention_lab import LabShape, attention_lab
    from kit.models.files.store import find_model
    from kit.views.attention_bars import AttentionBars
    from kit.views.terminal import console, lab_table

    shape = LabShape(n_kv=n_kv, n_tokens=n_tokens)
    if file is not None:
        shape = LabShape.of(LlamaConfig.from_gguf(GGUFFile(find_model(file))), n_kv, n_tokens)
    with Backend(n_threads=threads) as backend:
        report = attention_lab(shape, backend)
    view = AttentionBars(report)
    if as_json:
        click.echo(view.json())
    else:
        screen = console()
        screen.print(view.title)
        screen.print(lab_table(report))
    if page is not None:
        page.write_text(view.html(), encoding="utf-8")
        click.echo(f"wrote {page.resolve()}", err=True)
