"""Run benchmarks and print their figures; ``--out`` writes them as JSON too."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Figure
from benchmarks.registry import BENCHMARKS


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every bound is kept, 1 otherwise."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    figures: dict[str, list[Figure]] = {}
    for name in options.only or BENCHMARKS:
        with console.status(name):
            figures[name] = BENCHMARKS[name](options.rounds, options.scale)
    console.print(_table(figures))
    if options.out:
        options.out.write_text(json.dumps(_record(figures, options), indent=1) + "\n", encoding="utf-8")
    return int(any(figure.met is False for lines in figures.values() for figure in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=9, help="rounds whose median counts (default 9)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the work; bounds are for 1 (default)")
    parser.add_argument("--out", type=pathlib.Path, help="write the figures as JSON")
    return parser


def _table(figures: dict[str, list[Figure]]) -> Table:
    table = Table(
        "benchmark", "figure", "ours", "peer", "ratio", "bound", "met", "note", box=None, padding=(0, 2, 0, 0)
    )
    for name, lines in figures.items():
        for figure in lines:
            table.add_row(
                name,
                figure.name,
                f"{figure.ours_s:.4g}",
                f"{figure.peer_s:.4g}" if figure.peer_s else "",
                f"{figure.value:.2f}" if figure.peer_s else "",
                "" if figure.bound is None else f"<= {figure.bound:g}",
                {True: "yes", False: "NO", None: ""}[figure.met],
                "; ".join(text for text in (f"against {figure.peer}" if figure.peer else "", figure.note) if text),
            )
    return table


def _record(figures: dict[str, list[Figure]], options: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()},
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "rounds": options.rounds,
        "scale": options.scale,
        "figures": {name: [figure.as_dict() for figure in lines] for name, lines in figures.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
