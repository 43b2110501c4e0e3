"""One run of llama.cpp's llama-bench, and what its JSON says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.store import PeerMissing


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of llama.cpp; the values here are its own defaults, flash attention apart."""

    n_threads: int
    flash: bool = True
    n_ubatch: int = 512
    repack: bool = True

    def arguments(self) -> list[str]:
        """As llama-bench takes them."""
        return [
            *("-t", str(self.n_threads), "-fa", "on" if self.flash else "off"),
            *("-ub", str(self.n_ubatch), "--repack", str(int(self.repack))),
        ]

    def __str__(self) -> str:
        flash, repack = "flash" if self.flash else "no flash", "" if self.repack else ", no repack"
        return f"llama-bench, {self.threads}, {flash}, ubatch {self.n_ubatch}{repack}"

    @property
    def threads(self) -> str:
        """The number of threads as text."""
        return f"{self.n_threads} thread{'s' if self.n_threads > 1 else ''}"


@dataclasses.dataclass(frozen=True)
class Result:
    """One test of a run: ``n_prompt`` tokens in one go or ``n_gen`` one by one, each repetition's time."""

    n_prompt: int
    n_gen: int
    samples_ns: tuple[int, ...]
    build: int
    n_threads: int
    flash: bool
    model_type: str

    @property
    def mean_s(self) -> float:
        """Seconds a repetition took."""
        return sum(self.samples_ns) / len(self.samples_ns) / 1e9


def command(program: Path, model: Path, options: Options, *, prefill: int = 0, decode: int = 0) -> list[str]:
    """The command line for one test, measured once after a warm-up."""
    tests = ["-p", str(prefill), "-n", str(decode), "-r", "1", "-o", "json"]
    return [str(program), "-m", str(model), *options.arguments(), *tests]


def parse(text: str) -> list[Result]:
    """Read the output of ``llama-bench -o json``; PeerMissing names what is not as expected."""
    try:
        rows = json.loads(text)
        return [_result(row) for row in rows]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise PeerMissing(f"llama-bench's output is not what was expected ({error!r}): {text[:200]!r}") from error


def _result(row: dict[str, Any]) -> Result:
    samples = tuple(int(value) for value in row["samples_ns"])
    if not samples:
        raise ValueError("no samples_ns")
    return Result(
        n_prompt=int(row["n_prompt"]),
        n_gen=int(row["n_gen"]),
        samples_ns=samples,
        build=int(row["build_number"]),
        n_threads=int(row["n_threads"]),
        flash=row["flash_attn"] in (1, True, "on", "enabled"),
        model_type=str(row["model_type"]),
    )


def measure(program: Path, model: Path, options: Options, *, prefill: int = 0, decode: int = 0) -> float:
    """Return the seconds of one test: a prefill or a decode of that many tokens."""
    line = command(program, model, options, prefill=prefill, decode=decode)
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise PeerMissing(f"`{' '.join(line)}` ended with {done.returncode}:\n{done.stderr[-2000:].strip()}")
    (result,) = parse(done.stdout)
    if (result.n_prompt, result.n_gen) != (prefill, decode) or result.n_threads != options.n_threads:
        raise PeerMissing(f"llama-bench measured {result}, asked for {prefill} + {decode} tokens with {options}")
    return result.mean_s
