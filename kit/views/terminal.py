"""Tables and lines for a terminal, through rich; plain text of a sensible width in a pipe."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kit.core.devices import Device
from kit.core.gguf import GGUFFile
from kit.core.gguf_view import fold_tensors
from kit.models.attention_lab import LabReport
from kit.models.files.local import LocalModel
from kit.units import bytes_text, count_text, ne_text, shape_text, time_text
from kit.views.attention_bars import HEAD, cells_of
from kit.views.bars import PurposeBars
from kit.views.stage_table import StageRow, StageTable
from kit.views.tokens import line_text, shorten, token_text

PIPE_WIDTH = 110


def console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """Return a console that takes everything literally: no markup, no emoji codes, no guessed colours."""
    stream = file or sys.stdout
    if width is None and not stream.isatty():
        width = int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdigit() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)


def safe(text: object, width: int = 200) -> str:
    """Return ``text`` as one line without control characters, cut to ``width``."""
    return shorten(line_text(str(text)[: 4 * width]).replace("\n", "↵").replace("\t", " "), width)


def table(head: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[int] = ()) -> Table:
    """Return a light table; columns in ``right`` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, title in enumerate(head):
        made.add_column(title, justify="right" if i in right else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def devices_table(devices: Iterable[Device]) -> Table:
    """Return a row per device."""
    rows = [
        (
            Text(d.name, "bold"),
            d.kind,
            safe(d.description, 40),
            f"{bytes_text(d.memory_free)} of {bytes_text(d.memory_total)}",
            d.buffer_type,
            d.host_buffer_type or "no",
        )
        for d in devices
    ]
    return table(("device", "kind", "description", "free memory", "buffer type", "pinned host memory"), rows)


def file_table(file: GGUFFile) -> Table:
    """Return the tensors of a GGUF file, those of all blocks folded to one line."""
    folds = fold_tensors(file.tensors.values())
    split = len(file.parts) > 1
    rows: list[tuple[str | Text, ...]] = [
        (
            Text(safe(f.pattern, 40)),
            f"x {f.count}" if f.count > 1 else "",
            f.dtype,
            f.ne,
            bytes_text(f.nbytes),
            *([f.parts] if split else []),
        )
        for f in folds
    ]
    return table(("tensors", "", "type", "ne", "bytes", *(["in"] if split else [])), rows, right=(4,))


def parts_table(file: GGUFFile) -> Table:
    """Return a row per file of a split model."""
    rows = [
        (str(part.number), safe(part.path.name, 80), str(part.n_tensors), bytes_text(part.nbytes))
        for part in file.parts
    ]
    return table(("part", "file", "tensors", "bytes"), rows, right=(0, 2, 3))


def file_line(file: GGUFFile) -> str:
    """Return what the file is, in one line."""
    name = file.metadata.get("general.name", file.path.name)
    return (
        f"{safe(name, 60)}: {safe(file.architecture, 30)}, {count_text(file.n_params)} parameters in "
        f"{len(file.tensors)} tensors, {bytes_text(file.nbytes)}"
    )


def shape_line(file: GGUFFile) -> str:
    """Return the model's dimensions that the file names, in one line."""
    names = (
        ("block_count", "blocks"),
        ("embedding_length", "wide"),
        ("attention.head_count", "heads"),
        ("attention.head_count_kv", "heads of keys and values"),
        ("context_length", "tokens of context"),
    )
    found = ((f"{file.architecture}.{key}", what) for key, what in names)
    return ", ".join(f"{safe(file.metadata[key], 12)} {what}" for key, what in found if key in file.metadata)


def page_line(path: object, page: str) -> Text:
    """Return where a page was written, and its size."""
    return Text.assemble("\n", ("The page: ", "bold"), (str(path), "bold cyan"), f"  {len(page) // 1024} KiB")


def key_table(file: GGUFFile, keys: Iterable[str]) -> Table:
    """Return chosen metadata of a GGUF file, those it has."""
    rows = [(Text(key, "cyan"), safe(file.metadata[key], 60)) for key in keys if key in file.metadata]
    return table(("metadata", "value"), rows)


def tensor_table(file: GGUFFile) -> Table:
    """Return a row per tensor of a GGUF file."""
    split = len(file.parts) > 1
    rows = [
        (
            safe(i.name, 60),
            i.dtype,
            ne_text(i.ne),
            bytes_text(i.nbytes),
            str(i.offset),
            *([str(i.part)] if split else []),
        )
        for i in file.tensors.values()
    ]
    head = ("tensor", "type", "ne", "bytes", "at byte", *(["of part"] if split else []))
    return table(head, rows, right=(3, 4, 5) if split else (3, 4))


def bars_table(bars: PurposeBars) -> Table:
    """Return a row per purpose with a bar."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    made.add_column("purpose", no_wrap=True)
    made.add_column("bytes", justify="right", no_wrap=True)
    made.add_column("", width=22)
    made.add_column("what it is", style="dim", no_wrap=True, overflow="ellipsis")
    largest = max((bar.nbytes for bar in bars.bars), default=1) or 1
    for bar in bars.bars:
        drawn = ProgressBar(largest, max(bar.nbytes, largest / 44), complete_style="cyan", finished_style="cyan")
        made.add_row(Text(bar.purpose, "bold"), bytes_text(bar.nbytes), drawn, bar.what)
    made.add_row(Text("together", "dim"), Text(bytes_text(bars.nbytes), "dim"), "", "")
    return made


def block_table(stages: StageTable) -> Table:
    """Return a row per block, and one per stage outside the blocks."""
    rows: list[Sequence[str | Text]] = []
    slowest = max((block.time_ns() for block in stages.blocks()), default=1)
    for block in stages.blocks():
        last = block.last
        inside = last.block is not None
        attention = time_text(block.time_ns("attn")) if inside else ""
        feed_forward = time_text(block.time_ns("ffn")) if inside else ""
        heat = "yellow" if block.time_ns() > slowest * 0.6 else ""
        rows.append(
            (
                Text(block.name, "bold"),
                str(len(block.rows)),
                shape_text(last.shape),
                Text(time_text(block.time_ns()), heat),
                Text(attention, "dim"),
                Text(feed_forward, "dim"),
                f"{last.rms:.3g}",
                *_says(last),
            )
        )
    head = ("stages", "n", "shape", "time", "attn", "ffn", "rms", "says next", "probability")
    return table(head, rows, right=(1, 3, 4, 5, 6))


def stage_rows_table(stages: StageTable) -> Table:
    """Return a row per stage."""
    rows: list[Sequence[str | Text]] = []
    for row in stages.rows:
        style = "bold" if row.says is not None else "dim"
        name, shape, took = Text(row.name, style), shape_text(row.shape), time_text(row.time_ns)
        rows.append((name, shape, took, f"{row.rms:.4g}", *_says(row)))
    return table(("stage", "shape", "time", "rms", "says next", "probability"), rows, right=(2, 3))


def lab_table(report: LabReport) -> Table:
    """Return a row per way to do attention."""
    return table(HEAD, [cells_of(row) for row in report.rows], right=range(1, len(HEAD)))


def models_table(models: Iterable[LocalModel]) -> Table:
    """Return a row per model file found on this machine."""
    rows = [(Text(safe(m.name, 60), "bold"), bytes_text(m.nbytes), m.tool, safe(m.path, 4096)) for m in models]
    made = table(("model", "bytes", "found in", "path"), rows, right=(1,))
    made.columns[-1].no_wrap, made.columns[-1].overflow = False, "fold"  # a path cut short is of no use
    return made


def _says(row: StageRow) -> tuple[Text, Text]:
    if row.says is None or row.probability is None:
        return Text(""), Text("")
    if math.isnan(row.probability):
        return Text("NaN", "bold red"), Text("")
    style = "bold green" if row.probability >= 0.5 else "green" if row.probability >= 0.2 else "dim"
    drawn = "━" * max(1, round(10 * row.probability))
    return Text(token_text(row.says, 14), style), Text(f"{row.probability:4.0%} {drawn}", style)
