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

        Raises:
            UsageError: other words than these, or a cell that awaits: a magic runs inside the event loop.
        """
        from IPython.display import display

        from kit.memory import Tracker

        name, stacks = _words(line)
        _refuse_await(shell, cell)
        with Tracker(stacks=stacks) as tracker:
            result = _run(shell, cell)
        report = tracker.report()
        if name:
            shell.user_ns[name] = report
        display(report)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            __tracebackhide__ = True  # IPython then shows the cell's own frames
            raise error

    return kit_memory


def _words(line: str) -> tuple[str, bool]:
    """Return the variable to keep the report in, if any, and whether to keep stacks."""
    from IPython.core.error import UsageError

    words = shlex.split(line)
    names = [word for word in words if word != "--no-stacks"]
    if len(names) > 1 or not all(name.isidentifier() for name in names):
        raise UsageError(f"%%kit_memory [--no-stacks] [NAME]: {line.strip()!r} is neither; NAME keeps the report")
    return (names[0] if names else ""), "--no-stacks" not in words


def _refuse_await(shell: Any, cell: str) -> None:
    from IPython.core.error import UsageError

    if shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell)):
        raise UsageError(
            "a cell that awaits cannot run under %%kit_memory; write `with kit.Tracker() as mem:` in the cell, "
            "then mem.report()"
        )


def _run(shell: Any, cell: str) -> Any:
    """Run the rest of the current cell so that tracebacks and reports speak of its own number and lines."""
    before = shell.execution_count
    hidden = dict.fromkeys(("showtraceback", "showsyntaxerror"), lambda *args, **kwargs: None)
    shell.execution_count = max(1, len(shell.user_ns.get("In", [])) - 1)
    try:
        numbered = cell if cell.startswith("%%") else "#\n" + cell  # the magic's own line counts
        vars(shell).update(hidden)  # an error is shown once, when the magic raises it
        return shell.run_cell(numbered, store_history=False)
    finally:
        for name in hidden:
            vars(shell).pop(name, None)
        shell.execution_count = before
