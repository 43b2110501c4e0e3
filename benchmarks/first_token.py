"""From nothing to the first token, and the most memory a process takes: kit, llama.cpp's own program, transformers."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import kit
from benchmarks.measure import Candidate, Figure, samples
from benchmarks.peers import llamacpp, torch_peer
from benchmarks.peers.store import PeerMissing
from benchmarks.processes import Peak, peak_memory, start_to_first_byte
from benchmarks.settings import OURS, Setting

#: 32 tokens of the demo model's vocabulary.
PROMPT = (
    "Every country on Earth has a city where its government sits. The capital of Italy is Rome, "
    "the capital of Spain is Madrid, and the capital of France is"
)
N_PROMPT = 32
N_CTX = 512

#: The longer work whose memory is compared: a prefill of 512 tokens and some more one by one.
LONG = {"n_ctx": 1024, "n_prompt": 512, "n_decode": 16}
_WORD = " hello"  # one token

AGAINST_LLAMA_CPP = 0.7
AGAINST_TRANSFORMERS = 1 / 20
MEMORY = 1.05

_FIRST = """
import json, sys
import kit
path, prompt, load, session = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:5])
with kit.load(path, progress=False, **load) as model, model.session(**session) as s:
    print(next(s.generate(prompt, sampler=kit.Sampler(temperature=0))).text, flush=True)
"""
_LONG = """
import json, sys
import kit
path, ids, n_decode, load, session = sys.argv[1], *map(json.loads, sys.argv[2:6])
with kit.load(path, progress=False, **load) as model, model.session(**session) as s:
    row = s.run(ids, logits="last").logits[-1]
    for _ in range(n_decode):
        row = s.run([int(row.argmax())], logits="last").logits[-1]
"""


def run(rounds: int, scale: float) -> list[Figure]:
    """Time cold processes taking turns, then watch the memory of one of each."""
    path = kit.find_model("smollm2-135m")
    n_threads = min(2, os.cpu_count() or 1)
    try:
        program = llamacpp.programs() / "llama-completion"
    except PeerMissing as error:
        return [Figure("first token beside llama.cpp", 0, note=f"not measured: {error}")]
    lines = _first_tokens(path, program, n_threads, rounds)
    lines += _transformers(path, n_threads, max(1, rounds // 3))
    lines += _memory(path, program, n_threads)
    return lines


def _first_tokens(path: Path, program: Path, n_threads: int, rounds: int) -> list[Figure]:
    theirs = {
        "llama-completion as it comes": [],
        "llama-completion at its quickest": ["--no-warmup", "--fit", "off"],
    }
    candidates: dict[str, Candidate] = {s.name: _timed(_our_command(path, s, n_threads), s.env) for s in OURS}
    for name, options in theirs.items():
        candidates[name] = _timed(_their_command(program, path, n_threads, N_CTX, PROMPT, 1, options))
    times = samples(candidates, rounds)
    return [_figure(setting.name, peer, times, AGAINST_LLAMA_CPP, rounds) for setting in OURS for peer in theirs]


def _transformers(path: Path, n_threads: int, rounds: int) -> list[Figure]:
    try:
        folder = torch_peer.checkpoint(path)
        with kit.GGUFFile(path) as file:
            ids = [int(token) for token in kit.Tokenizer.from_gguf(file).encode(PROMPT)]
        assert len(ids) == N_PROMPT
        command = torch_peer.first_token(folder, n_threads, ids)
    except PeerMissing as error:
        return [Figure("first token beside transformers", 0, note=f"not measured: {error}")]
    candidates = {s.name: _timed(_our_command(path, s, n_threads), s.env) for s in OURS}
    candidates["transformers"] = _timed(command, torch_peer.ENVIRONMENT, check=None)
    times = samples(candidates, rounds)
    return [_figure(setting.name, "transformers", times, AGAINST_TRANSFORMERS, rounds) for setting in OURS]


def _figure(ours: str, peer: str, times: dict[str, list[float]], bound: float, rounds: int) -> Figure:
    spread = " against ".join(f"{min(times[name]):.2f}-{max(times[name]):.2f} s" for name in (ours, peer))
    title = f"cold process to its first token, {ours}"
    return Figure(title, statistics.median(times[ours]), statistics.median(times[peer]), peer, bound, rounds, spread)


def _timed(command: list[str], env: dict[str, str] | None = None, check: str | None = "Paris") -> Candidate:
    def turn() -> float:
        done = start_to_first_byte(command, env)
        if check and check not in done.text:
            raise RuntimeError(f"the first token was {done.text!r}, expected {check!r}: {command[0]}")
        return done.first_s

    return turn


def _our_command(path: Path, setting: Setting, n_threads: int) -> list[str]:
    load = json.dumps({"n_threads": n_threads} | setting.load)
    session = json.dumps({"n_ctx": N_CTX} | setting.session)
    return [sys.executable, "-c", _FIRST, str(path), PROMPT, load, session]


def _their_command(
    program: Path, path: Path, n_threads: int, n_ctx: int, prompt: str, n_predict: int, options: list[str]
) -> list[str]:
    """llama-completion without chat, greedy, printing what it made and nothing else."""
    return [
        *(str(program), "-m", str(path), "-t", str(n_threads), "-c", str(n_ctx), "-n", str(n_predict)),
        *("-p", prompt, "--temp", "0", "-no-cnv", "--no-display-prompt", "--ignore-eos", *options),
    ]


def _our_long_command(path: Path, setting: Setting, n_threads: int, n_prompt: int, n_decode: int) -> list[str]:
    with kit.GGUFFile(path) as file:
        (token,) = kit.Tokenizer.from_gguf(file).encode(_WORD)
    load = json.dumps({"n_threads": n_threads} | setting.load)
    session = json.dumps({"n_ctx": LONG["n_ctx"]} | setting.session)
    return [sys.executable, "-c", _LONG, str(path), str([int(token)] * n_prompt), str(n_decode), load, session]


def _memory(path: Path, program: Path, n_threads: int) -> list[Figure]:
    n_ctx, n_prompt, n_decode = LONG["n_ctx"], LONG["n_prompt"], LONG["n_decode"]
    theirs = peak_memory(_their_command(program, path, n_threads, n_ctx, _WORD * n_prompt, n_decode, []))
    lines = []
    for setting in OURS:
        command = _our_long_command(path, setting, n_threads, n_prompt, n_decode)
        lines += _peaks(setting.name, peak_memory(command, setting.env), theirs)
    return lines


def _peaks(ours: str, us: Peak, them: Peak) -> list[Figure]:
    parts: dict[str, Callable[[Peak], int]] = {
        "resident": lambda peak: peak.resident_bytes,
        "anonymous": lambda peak: peak.anonymous_bytes,
        "of files": lambda peak: peak.file_bytes,
    }
    title = f"peak memory (MB), prefill {LONG['n_prompt']} and decode {LONG['n_decode']}, {ours}"
    return [
        Figure(f"{title}: {name}", part(us) / 1e6, part(them) / 1e6, "llama-completion", bound, 1)
        for (name, part), bound in zip(parts.items(), (MEMORY, None, None), strict=True)
    ]
