"""The command line. Importing it loads nothing heavy: each command fetches what it needs."""

from kit.cli import files, machine, memory, text, tour  # noqa: F401 - each adds its commands to the group
from kit.cli.group import main

__all__ = ["main"]
