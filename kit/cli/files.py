"""Model files: ``kit gguf``, ``convert``, ``model``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kit.cli.group import main
from kit.cli.options import page_path, threads_option


@main.command()
@click.argument("file")
@click.option(
    "--json", "as_json", is_flag=True, help="Metadata and tensors as JSON; long arrays by their first values."
)
@click.option("--tensors", is_flag=True, help="A line per tensor instead of folding the blocks.")
def gguf(file: str, as_json: bool, tensors: bool) -> None:
    """Show what is in a GGUF file, without loading it."""
    from kit.core.gguf import GGUFFile
    from kit.models.files.store import find_model

    opened = GGUFFile(find_model(file, fetch=False))
    if as_json:
        click.echo(json.dumps(_gguf_data(opened), ensure_ascii=False, indent=1))
        return
    from rich.text import Text

    from kit.views.terminal import console, file_line, file_table, key_table, parts_table, tensor_table

    screen = console()
    screen.print(Text(file_line(opened), "bold"))
    screen.print()
    if len(opened.parts) > 1:
        screen.print(parts_table(opened))
        screen.print()
    screen.print(key_table(opened, opened.metadata))
    screen.print()
    screen.print(tensor_table(opened) if tensors else file_table(opened))


@main.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=page_path)
@click.option("--type", "dtype", default="f16", show_default=True, help="f32, f16, bf16, q8_0, q4_0, q4_K_M, ...")
@click.option("--ignore", multiple=True, metavar="FIELD", help="A field of config.json known not to matter.")
@threads_option
def convert(source: Path, out: Path, dtype: str, ignore: tuple[str, ...], threads: int | None) -> None:
    """Convert a Hugging Face llama or mistral checkpoint to GGUF, or a GGUF file to another type.

    SOURCE is a folder with config.json, safetensors and a tokenizer, or a GGUF file.
    """
    from kit.models.convert.convert import convert as run_convert

    done = run_convert(source, out, dtype, progress=sys.stderr.isatty(), n_threads=threads, ignore=ignore)
    click.echo(done.text())


@main.group()
def model() -> None:
    """Fetch and find models."""


@model.command("get")
@click.argument("name")
def model_get(name: str) -> None:
    """Fetch a model kit knows into the cache, verified by hash; print its path."""
    from kit.models.files.store import fetch_model

    click.echo(fetch_model(name, progress=sys.stderr.isatty()))


@model.command("list")
def model_list() -> None:
    """List the models kit can fetch, and those other tools left on this machine."""
    from kit.models.files.store import known_models, local_models
    from kit.units import bytes_text
    from kit.views.terminal import console, models_table, table

    screen = console()
    rows = [
        (m.name, bytes_text(m.nbytes), "fetched" if m.is_fetched else "not fetched", m.description)
        for m in known_models()
    ]
    screen.print(table(("known", "bytes", "state", "what it is"), rows, right=(1,)))
    screen.print()
    found = local_models()
    if found:
        screen.print(models_table(found))
    else:
        click.echo("no model of another tool was found (Hugging Face, Ollama, LM Studio, llama.cpp)")


def _gguf_data(file: Any) -> dict[str, Any]:
    tensors = [
        {
            "name": i.name,
            "ne": i.ne,
            "shape": i.shape,
            "type": i.dtype,
            "nbytes": i.nbytes,
            "offset": i.offset,
            "part": i.part,
        }
        for i in file.tensors.values()
    ]
    parts = [{"path": str(p.path), "nbytes": p.nbytes, "n_tensors": p.n_tensors} for p in file.parts]
    return {
        "path": str(file.path),
        "version": file.version,
        "alignment": file.alignment,
        "nbytes": file.nbytes,
        "parts": parts,
        "metadata": {key: _plain(file.metadata[key]) for key in file.metadata},
        "tensors": tensors,
    }


def _plain(value: Any, shown: int = 16) -> Any:
    """Return a metadata value as JSON has it; a long array by its length and its first values."""
    if isinstance(value, str | int | float | bool):
        return value
    convert: Callable[[Any], Any] = lambda item: item.item() if hasattr(item, "item") else item  # noqa: E731
    if not hasattr(value, "__len__"):
        return convert(value)
    first = [convert(item) for item in value[:shown]]
    return first if len(value) <= shown else {"count": len(value), "first": first}
