"""The group of all commands: what kit raises on purpose becomes a line and an exit code."""

from __future__ import annotations

import traceback
from typing import Any

import click

from kit import __version__
from kit.errors import KitError

INTERRUPTED = 130


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
            ctx.exit(INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kit")
@click.option("--debug", is_flag=True, envvar="KIT_DEBUG", help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """See ggml work: look into GGUF files, step through a model layer by layer, see what memory is live.

    FILE is a path to a GGUF file, or the name of a model kit knows or finds on this machine (kit model list).
    """
