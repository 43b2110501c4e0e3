"""Running a model: ``kit run``, ``chat``, ``step``."""

from __future__ import annotations

import sys
from typing import Any

import click

from kit.cli.group import main
from kit.cli.options import generating, opened, threads_option


@main.command()
@click.argument("file")
@click.argument("prompt")
@generating
@click.option(
    "--logprobs", type=click.IntRange(0, 1000), default=0, help="Show so many likeliest tokens at each place."
)
def run(file: str, prompt: str, threads: int | None, logprobs: int, **settings: Any) -> None:
    """Let a model go on from PROMPT; the text goes to stdout as it comes, figures to stderr."""
    from kit.views.conversation import Speaker
    from kit.views.tokens import alternatives_line

    with opened(file, threads, settings) as (session, asked):
        speaker = Speaker()
        speaker.say(session.generate(prompt, logprobs=logprobs, **asked))
        for token in speaker.tokens if logprobs else ():
            click.echo(alternatives_line(session.tokenizer.token(token.id), token), err=True)
        click.echo(click.style(speaker.figures(), dim=True), err=True)


@main.command()
@click.argument("file")
@click.option("--system", help="What the model is told first.")
@click.option("--template", metavar="NAME", help="A built-in form, such as chatml, in place of the file's template.")
@generating
def chat(file: str, system: str | None, template: str | None, threads: int | None, **settings: Any) -> None:
    """Talk with a model: a line is a message. Ctrl-C ends an answer, Ctrl-D the chat."""
    from kit.views.conversation import Conversation

    with opened(file, threads, settings) as (session, asked):
        Conversation(session, system, {"template": template} | asked).run()


@main.command()
@click.argument("file")
@click.argument("prompt")
@click.option("--level", type=click.Choice(["stage", "block"]), default="block", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON.")
@click.option("--n-ctx", type=click.IntRange(1), help="Tokens the cache holds.")
@threads_option
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
