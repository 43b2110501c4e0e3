"""The command line. Importing it loads nothing heavy: each command fetches what it needs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from kit import __version__
from kit.errors import KitError

_INTERRUPTED = 130

_threads = click.option("-t", "--threads", type=click.IntRange(1, 512), help="CPU threads; fewer on a busy machine.")
_page: click.Path = click.Path(dir_okay=False, path_type=Path)


_SAMPLING = (
    click.option("--temperature", type=click.FloatRange(0), default=0.8, show_default=True, help="0: the likeliest."),
    click.option("--top-k", type=click.IntRange(0), default=40, show_default=True, help="0: all."),
    click.option("--top-p", type=click.FloatRange(0, 1), default=0.95, show_default=True),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.05, show_default=True),
    click.option("--repeat-penalty", type=click.FloatRange(0, min_open=True), default=1, show_default=True),
    click.option("--seed", type=click.IntRange(0), help="The same seed gives the same text."),
)


def _generating(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the commands that generate text."""
    options = (
        click.option("-n", "--max-tokens", type=click.IntRange(0), default=128, show_default=True),
        *_SAMPLING,
        click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given again."),
        click.option("--n-ctx", type=click.IntRange(1), help="Tokens the cache holds.  [default: 2048 or the model's]"),
        click.option("--flash-attn/--no-flash-attn", default=None, help="Fused attention."),
        _threads,
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextlib.contextmanager
def _opened(file: str, threads: int | None, settings: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Give a session with the model in ``file``, and what the options of `_generating` ask of a generation."""
    from kit.models.model import load
    from kit.models.session.sampler import Sampler

    opening = {name: settings.pop(name) for name in ("n_ctx", "flash_attn")}
    asked = {name: settings.pop(name) for name in ("max_tokens", "stop")}
    sampler = Sampler(**settings)
    with load(file, progress=sys.stderr.isatty(), n_threads=threads) as model, model.session(**opening) as session:
        yield session, asked | {"sampler": sampler}


class _Commands(click.Group):
    """Turns what kit raises on purpose into a line on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KitError as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            else:
                click.echo(click.style("kit: ", fg="red", bold=True) + str(error), err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("kit: interrupted", err=True)
            ctx.exit(_INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kit")
@click.option("--debug", is_flag=True, envvar="KIT_DEBUG", help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """See ggml work: look into GGUF files, step through a model layer by layer, see what memory is live.

    FILE is a path to a GGUF file, or the name of a model kit knows or finds on this machine (kit model list).
    """


@main.command()
@click.option("--out", type=_page, default=Path("kit-demo.html"), show_default=True)
@click.option("--prompt", help="What the model goes on from.")
@click.option("--model", "name", default="smollm2-135m", show_default=True, help="A name or a path.")
@_threads
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
def demo(out: Path, prompt: str | None, name: str, threads: int | None, opens: bool) -> None:
    """The whole tour on a small model: devices, file, answer, every stage, memory; writes a page."""
    _require_writable(out, "--out")
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
@click.argument("file")
@click.argument("prompt")
@_generating
@click.option(
    "--logprobs", type=click.IntRange(0, 1000), default=0, help="Show so many likeliest tokens at each place."
)
def run(file: str, prompt: str, threads: int | None, logprobs: int, **settings: Any) -> None:
    """Let a model go on from PROMPT; the text goes to stdout as it comes, figures to stderr."""
    from kit.views.conversation import Speaker
    from kit.views.tokens import alternatives_line

    with _opened(file, threads, settings) as (session, asked):
        speaker = Speaker()
        speaker.say(session.generate(prompt, logprobs=logprobs, **asked))
        for token in speaker.tokens if logprobs else ():
            click.echo(alternatives_line(session.tokenizer.token(token.id), token), err=True)
        click.echo(click.style(speaker.figures(), dim=True), err=True)


@main.command()
@click.argument("file")
@click.option("--system", help="What the model is told first.")
@click.option("--template", metavar="NAME", help="A built-in form, such as chatml, in place of the file's template.")
@_generating
def chat(file: str, system: str | None, template: str | None, threads: int | None, **settings: Any) -> None:
    """Talk with a model: a line is a message. Ctrl-C ends an answer, Ctrl-D the chat."""
    from kit.views.conversation import Conversation

    with _opened(file, threads, settings) as (session, asked):
        Conversation(session, system, {"template": template} | asked).run()


@main.command()
@click.argument("file")
@click.argument("prompt")
@click.option("--level", type=click.Choice(["stage", "block"]), default="block", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON.")
@click.option("--n-ctx", type=click.IntRange(1), help="Tokens the cache holds.")
@_threads
def step(file: str, prompt: str, level: str, as_json: bool, n_ctx: int | None, threads: int | None) -> None:
    """Step through one pass over PROMPT: shape, time, size, and what the model would say next."""
    from kit.models.model import load
    from kit.views import terminal
    from kit.views.stage_table import StageTable

    with load(file, progress=sys.stderr.isatty(), n_threads=threads) as model, model.session(n_ctx) as session:
        walk = session.steps(prompt, level="block" if level == "block" else "stage")
        stages = StageTable.of(walk, model.pieces(session.tokenizer.encode(prompt)))
    if as_json:
        click.echo(stages.json())
        return
    screen = terminal.console()
    screen.print(terminal.stage_rows_table(stages))


@main.command()
@click.argument("file", required=False)
@click.option("--attention", is_flag=True, help="Attention with three copies, one, none, and fused.")
@click.option("--n-kv", type=click.IntRange(1), default=4096, show_default=True, help="Cells attended to.")
@click.option("--n-tokens", type=click.IntRange(1), default=1, show_default=True, help="Tokens of the pass.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--html", "page", type=_page, help="Also write the bars and the table as a page.")
@_threads
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
        _require_writable(page, "--html")
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


@main.command()
@click.option("--sizes", metavar="LIST", help="As in 4KiB,1MiB,64MB.  [default: 4 KiB to 256 MiB]")
@click.option("--repeats", type=click.IntRange(1), help="Trips per kind and size.  [default: a tenth of a second]")
@click.option("--json", "as_json", is_flag=True, help="The records as JSON.")
@click.option("--html", "page", type=_page, help="Also write the curves and tables as a page.")
def costs(sizes: str | None, repeats: int | None, as_json: bool, page: Path | None) -> None:
    """Measure what host, locked, pinned and device memory costs on this machine."""
    if page is not None:
        _require_writable(page, "--html")
    wanted = None if sizes is None else _sizes(sizes)
    from kit import memory

    found = memory.costs(wanted, repeats)
    click.echo(found.json() if as_json else found.text())
    if page is not None:
        page.write_text(found.html(), encoding="utf-8")
        click.echo(f"wrote {page.resolve()}", err=True)


@main.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--report", type=_page, default=Path("kit-memory.html"), show_default=True, help=".html, .json or .txt"
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
    _require_writable(report, "--report")
    from kit.memory.watch import main as run_watched

    options = ["--output", str(report), *(["--no-stacks"] if no_stacks else []), *(["-m"] if module else [])]
    ctx.exit(run_watched([*options, "--", script, *args]))


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


@main.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=_page)
@click.option("--type", "dtype", default="f16", show_default=True, help="f32, f16, bf16, q8_0, q4_0, q4_K_M, ...")
@click.option("--ignore", multiple=True, metavar="FIELD", help="A field of config.json known not to matter.")
@_threads
def convert(source: Path, out: Path, dtype: str, ignore: tuple[str, ...], threads: int | None) -> None:
    """Convert a Hugging Face llama or mistral checkpoint to GGUF, or a GGUF file to another type.

    SOURCE is a folder with config.json, safetensors and a tokenizer, or a GGUF file.
    """
    from kit.models.convert.convert import convert as run_convert

    done = run_convert(source, out, dtype, progress=sys.stderr.isatty(), n_threads=threads, ignore=ignore)
    click.echo(done.text())


def _sizes(text: str) -> list[int]:
    """Read ``4KiB,1MB``; raise BadParameter for what is no size."""
    from kit.errors import ArgumentError
    from kit.units import parse_bytes

    try:
        return [parse_bytes(part) for part in text.split(",")]
    except ArgumentError as error:
        raise click.BadParameter(str(error), param_hint="--sizes") from None


def _require_writable(path: Path, option: str) -> None:
    """Refuse now what could not be written at the end."""
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise click.BadParameter(f"the folder {folder} is not there or cannot be written", param_hint=option)


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


if __name__ == "__main__":
    main()
