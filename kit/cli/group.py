"""The group of all commands: what kit raises on purpose becomes a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
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
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except KitError as error:
            _tell(ctx, error)
            ctx.exit(1)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read has enough; click ends without a word
                raise
            _tell(ctx, error)
            _drop_output()
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("kit: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _tell(ctx: click.Context, error: Exception) -> None:
    if ctx.params.get("debug"):
        traceback.print_exc()
    else:
        click.echo(click.style("kit: ", fg="red", bold=True) + str(error), err=True)


def _drop_output() -> None:
    """What could not be written, and Python would try to write once more as it ends, goes nowhere."""
    stdout = sys.__stdout__
    if stdout is not None and sys.stdout is stdout:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stdout.fileno())
            os.close(nowhere)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kit")
@click.option("--debug", is_flag=True, envvar="KIT_DEBUG", help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """See ggml work: look into GGUF files, step through a model layer by layer, see what memory is live.

    FILE is a path to a GGUF file, or the name of a model kit knows or finds on this machine (kit model list).
    """
