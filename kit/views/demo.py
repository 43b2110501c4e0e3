"""The demo: the whole tour in one command, told on the terminal while it happens, kept as plain data."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.text import Text

from kit import memory
from kit.core.devices import Devices, devices
from kit.core.gguf import GGUFFile
from kit.memory.live import Live
from kit.models.files.store import find_model
from kit.models.model import load
from kit.models.session.sampler import Sampler
from kit.units import bytes_text, time_text
from kit.views import terminal
from kit.views.attention import AttentionView
from kit.views.bars import PurposeBars
from kit.views.lens_grid import LensGrid
from kit.views.stage_table import StageTable
from kit.views.tokens import line_text

if TYPE_CHECKING:
    from kit.models.session.run import Run
    from kit.models.session.session import Session

PROMPT = "The capital of France is"
N_CTX = 512
N_TOKENS = 48


@dataclass(frozen=True)
class Answer:
    """What the model said: ``time_ns`` from the prompt to the last of ``n_tokens`` tokens."""

    prompt: str
    text: str
    n_tokens: int
    time_ns: int


@dataclass(frozen=True)
class Demo:
    """Everything the demo saw, as plain data; the page is made of it."""

    model: str
    session: str
    devices: Devices
    file_html: str
    file_line: str
    load_ns: int
    answer: Answer
    stages: StageTable
    lens: LensGrid
    attention: AttentionView
    live: Live
    bars: PurposeBars
    left: Live


def run_demo(prompt: str, name_or_path: str | os.PathLike[str], out: Console, threads: int | None = None) -> Demo:
    """Run the demo, telling it on ``out``.

    Raises what `kit.load` and `Session.run` raise; everything opened is closed again.
    """
    found = devices()
    _heading(out, 1, "The devices ggml sees")
    out.print(terminal.devices_table(found))
    file = _read_file(name_or_path, out)
    started = time.perf_counter_ns()
    model = load(file.path, progress=out.is_terminal, n_threads=threads)
    with model, model.session(n_ctx=min(N_CTX, model.config.n_ctx_train)) as session:
        load_ns = time.perf_counter_ns() - started
        live = memory.live()
        bars = PurposeBars.of(live)
        _heading(out, 3, f"Loaded in {time_text(load_ns)}: where the memory is")
        out.print(terminal.bars_table(bars))
        answer = _answer(session, prompt, out)
        stages = _step_through(session, prompt, out)
        lens, attention = _look_inside(session, prompt)
        summary = repr(session)
    left = memory.live()
    _heading(out, 6, "Memory")
    out.print(Text(f"while the session was open: {len(live)} resources live, {bytes_text(bars.nbytes)}"))
    out.print(Text(f"after close: {left.text()}", "bold green" if not left else "bold red"))
    name, line = model.config.name, terminal.file_line(file)
    return Demo(name, summary, found, file.html(), line, load_ns, answer, stages, lens, attention, live, bars, left)


def _read_file(name_or_path: str | os.PathLike[str], out: Console) -> GGUFFile:
    file = GGUFFile(find_model(name_or_path))
    _heading(out, 2, "The file: read, not loaded")
    out.print(Text(terminal.file_line(file)))
    out.print(Text(terminal.shape_line(file), "dim"))
    out.print()
    out.print(terminal.file_table(file))
    return file


def _answer(session: Session, prompt: str, out: Console) -> Answer:
    """Generate greedily until a paragraph ends, printing each token as it comes."""
    _heading(out, 4, "The answer")
    out.print(Text(line_text(prompt), "dim"), end="")
    started = time.perf_counter_ns()
    words: list[str] = []
    breaks = ""
    for token in session.generate(prompt, max_tokens=N_TOKENS, sampler=Sampler(temperature=0), stop=("\n\n",)):
        words.append(token.text)
        shown = breaks + token.text
        breaks = shown[len(shown.rstrip("\n")) :]  # line ends are held back: the last ones end the answer
        out.print(Text(line_text(shown.rstrip("\n")), "bold green"), end="")
        out.file.flush()
    took = time.perf_counter_ns() - started
    out.print()
    out.print(Text(f"{len(words)} tokens in {time_text(took)}", "dim"))
    return Answer(prompt, "".join(words).rstrip("\n"), len(words), took)


def _step_through(session: Session, prompt: str, out: Console) -> StageTable:
    session.reset()
    pieces = session.model.pieces(session.tokenizer.encode(prompt))
    stages = StageTable.of(session.steps(prompt), pieces)
    _heading(out, 5, f"The same prompt again, one stage at a time: {len(stages.rows)} stages")
    out.print(Text("after each block, what the model would say next if it ended there", "dim"))
    out.print(terminal.block_table(stages))
    return stages


def _look_inside(session: Session, prompt: str) -> tuple[LensGrid, AttentionView]:
    session.reset()
    run = session.run(prompt, keep=["blk.*.resid", "blk.*.attn.scores"])
    return LensGrid.of(run), AttentionView.of(run, _busiest_block(run, session.model.config.n_layer))


def _busiest_block(run: Run, n_layer: int) -> int:
    """Return the block whose last token looks most at other tokens than the first and itself: the most to see."""
    around = []
    for block in range(n_layer):
        last = run[f"blk.{block}.attn.scores"][:, -1, 1:-1]
        around.append(float(last.max(axis=-1).mean()) if last.shape[-1] else 0.0)
    return int(np.argmax(around))


def _heading(out: Console, number: int, title: str) -> None:
    out.print()
    out.print(Text.assemble((f" {number} ", "bold reverse"), f" {title}", style="bold"))
