"""Options and checks that several commands share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

threads_option = click.option(
    "-t", "--threads", type=click.IntRange(1, 512), help="CPU threads; fewer on a busy machine."
)


page_path: click.Path = click.Path(dir_okay=False, path_type=Path)


_SAMPLING = (
    click.option("--temperature", type=click.FloatRange(0), default=0.8, show_default=True, help="0: the likeliest."),
    click.option("--top-k", type=click.IntRange(0), default=40, show_default=True, help="0: all."),
    click.option("--top-p", type=click.FloatRange(0, 1), default=0.95, show_default=True),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.05, show_default=True),
    click.option("--repeat-penalty", type=click.FloatRange(0, min_open=True), default=1, show_default=True),
    click.option("--seed", type=click.IntRange(0), help="The same seed gives the same text."),
)


def generating(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the commands that generate text."""
    options = (
        click.option("-n", "--max-tokens", type=click.IntRange(0), default=128, show_default=True),
        *_SAMPLING,
        click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given again."),
        click.option("--n-ctx", type=click.IntRange(1), help="Tokens the cache holds.  [default: 2048 or the model's]"),
        click.option("--flash-attn/--no-flash-attn", default=None, help="Fused attention."),
        threads_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextlib.contextmanager
def opened(file: str, threads: int | None, settings: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Give a session with the model in ``file``, and what the options of `generating` ask of a generation."""
    from kit.models.model import load
    from kit.models.session.sampler import Sampler

    opening = {name: settings.pop(name) for name in ("n_ctx", "flash_attn")}
    asked = {name: settings.pop(name) for name in ("max_tokens", "stop")}
    sampler = Sampler(**settings)
    with load(file, progress=sys.stderr.isatty(), n_threads=threads) as model, model.session(**opening) as session:
        yield session, asked | {"sampler": sampler}


def require_writable(path: Path, option: str) -> None:
    """Refuse now what could not be written at the end."""
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise click.BadParameter(f"the folder {folder} is not there or cannot be written", param_hint=option)
