"""``python -m kit``: the same as the ``kit`` command."""

from kit.cli import main

main(prog_name="kit")
