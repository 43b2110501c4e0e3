"""Notebook magics: ``%load_ext kit``, then ``%%kit_memory`` on a cell."""

from __future__ import annotations

import shlex
from typing import Any


def register(shell: Any) -> None:
    """Make the magics known to an IPython shell."""
    shell.register_magic_function(_kit_memory(shell), magic_kind="cell", magic_name="kit_memory")


def _kit_memory(shell: Any) -> Any:
    def kit_memory(line: str, cell: str) -> None:
        """Run the cell under a tracker and show its memory report.

        ``%%kit_memory name`` also keeps the report in the variable ``name``; ``--no-stacks`` leaves Python lines out.
        """
        from IPython.display import display

        from kit.memory import Tracker

        words = shlex.split(line)
        names = [word for word in words if not word.startswith("-")]
        with Tracker(stacks="--no-stacks" not in words) as tracker:
            result = _run(shell, cell)
        report = tracker.report()
        if names:
            shell.user_ns[names[0]] = report
        display(report)
        if not result.success:
            raise result.error_before_exec or result.error_in_exec

    return kit_memory


def _run(shell: Any, cell: str) -> Any:
    """Run the rest of the current cell so that tracebacks and reports speak of its own number and lines."""
    before = shell.execution_count
    shell.execution_count = max(1, len(shell.user_ns.get("In", [])) - 1)
    try:
        numbered = cell if cell.startswith("%%") else "#\n" + cell  # the magic's own line counts
        return shell.run_cell(numbered, store_history=False)
    finally:
        shell.execution_count = before
