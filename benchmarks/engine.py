"""Decode and prefill beside llama.cpp's llama-bench and transformers, all taking turns on the same files.

1. The demo model with the same settings on both sides: threads and flash attention.
2. Prefill in every type of ``files.TYPES``, against the fastest of llama-bench's settings and of float32 transformers.
3. Decoding against transformers.

Beside the ratio stand the share of the memory bandwidth (decode) and of the multiply-add rate (prefill) that a small
C program measured in the same rounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import files
from benchmarks.machine import Probe
from benchmarks.measure import Candidate, Figure, samples
from benchmarks.peers import llama_bench, llamacpp, torch_peer
from benchmarks.peers.llama_bench import Options
from benchmarks.peers.store import PeerMissing
from benchmarks.settings import OURS, Setting
from benchmarks.worker import Worker, WorkerError

N_DECODE = 128
N_PREFILL = 512

#: Times are compared: 1.05 times as fast is a ratio of at most 1 / 1.05.
FASTER = 1 / 1.05
AS_FAST = 1.0
DECODE_AGAINST_FLOAT32 = 1 / 8

_GIGA = 1e9


@dataclasses.dataclass(frozen=True)
class Work:
    """How much is done: rounds that count, tokens decoded, tokens of a prefill."""

    rounds: int
    n_decode: int
    n_prefill: int

    def n_tokens(self, kind: str) -> int:
        """Tokens of one turn."""
        return self.n_decode if kind == "decode" else self.n_prefill


def run(rounds: int, scale: float) -> list[Figure]:
    """Measure all; what cannot be measured here is a line that says why. Half the rounds: each takes minutes."""
    work = Work(max(1, (rounds + 1) // 2), max(4, int(N_DECODE * scale)), max(32, int(N_PREFILL * scale)))
    try:
        bench = llamacpp.programs() / "llama-bench"
        probe = Probe()
    except PeerMissing as error:
        return [Figure("beside llama.cpp", 0, note=f"not measured: {error}")]
    n_most = min(2, os.cpu_count() or 1)
    lines: list[Figure] = []
    for n_threads, flash in itertools.product(sorted({n_most, 1}, reverse=True), (True, False)):
        lines += _told(same_settings(bench, probe, Options(n_threads, flash), work))
    with contextlib.ExitStack() as stack:
        try:
            folder = torch_peer.checkpoint(files.model_file("Q4_1"))
            torch = stack.enter_context(torch_peer.serving(folder, n_most))
        except (PeerMissing, WorkerError) as error:
            torch = None
            lines.append(Figure("beside transformers", 0, note=f"not measured: {error}"))
        for type_name in files.TYPES:
            try:
                lines += _told(by_type(bench, probe, torch, type_name, n_most, work))
            except PeerMissing as error:
                lines.append(Figure(f"{type_name} beside llama.cpp", 0, note=f"not measured: {error}"))
    return lines


def _told(figures: list[Figure]) -> list[Figure]:
    """Print them to standard error as they are found: a whole run takes long, and what was measured is not lost."""
    for figure in figures:
        print(f"{figure.name}: {figure.value:.2f} of {figure.peer}'s time; {figure.note}", file=sys.stderr, flush=True)
    return figures


def same_settings(bench: Path, probe: Probe, options: Options, work: Work) -> list[Figure]:
    """Decode and prefill of the demo model, llama-bench with the same threads and flash attention on or off."""
    path = files.model_file("Q4_1")
    with _ours(path, options.n_threads, (options.flash,)) as ours:
        candidates = _candidates(ours, work) | _probes(probe, options.n_threads)
        for kind in ("decode", "prefill"):
            candidates[f"{kind} llama-bench"] = _bench(bench, path, options, kind, work)
        times = samples(candidates, work.rounds)
    table = Comparison(path, times, work)
    name = f"{options.threads}, {'flash' if options.flash else 'no flash'}"
    lines = []
    for setting in OURS:
        key = _key(setting, options.flash)
        for kind, bound in (("decode", FASTER), ("prefill", AS_FAST)):
            title = f"Q4_1 {kind} {work.n_tokens(kind)}, {name}, {setting.name}"
            lines.append(table.figure(title, kind, key, "llama-bench", bound))
    return lines


def by_type(
    bench: Path, probe: Probe, torch: Worker | None, type_name: str, n_threads: int, work: Work
) -> list[Figure]:
    """One type: every setting of ours, llama-bench's fastest two, transformers in float32."""
    path = files.model_file(type_name)
    fast = fastest_options(bench, path, n_threads, work)
    peers = {"prefill": [str(options) for options in fast], "decode": []}
    with _ours(path, n_threads, (True, False)) as ours:
        candidates = _candidates(ours, work) | _probes(probe, n_threads)
        for options in fast:
            candidates[f"prefill {options}"] = _bench(bench, path, options, "prefill", work)
        for options in (Options(n_threads, True), Options(n_threads, False)):
            peers["decode"].append(str(options))
            candidates[f"decode {options}"] = _bench(bench, path, options, "decode", work)
        if torch:
            candidates |= _transformers(torch, work, with_decode=type_name == "Q4_1")
        times = samples(candidates, work.rounds)
    return _type_figures(Comparison(path, times, work), type_name, peers, work)


def _type_figures(table: Comparison, type_name: str, peers: dict[str, list[str]], work: Work) -> list[Figure]:
    """The fastest of ours beside the fastest of theirs; where nothing is built or copied less is promised."""
    keys = {_key(setting, flash): setting for setting, flash in itertools.product(OURS, (True, False))}
    decode, prefill = f"{type_name} decode {work.n_decode}", f"{type_name} prefill {work.n_prefill}"
    our_decode = table.fastest("decode", keys)
    lines = [table.figure(decode, "decode", our_decode, table.fastest("decode", peers["decode"]), FASTER)]
    best_peer = table.fastest("prefill", peers["prefill"])
    for plain, bound in ((True, AS_FAST), (False, FASTER)):
        of_kind = [key for key, setting in keys.items() if setting.plain is plain]
        if of_kind:
            title = f"{prefill}, {'no build, no copy' if plain else 'with a build or a copy'}"
            lines.append(table.figure(title, "prefill", table.fastest("prefill", of_kind), best_peer, bound))
    everyone = peers["prefill"] + [name for name in ("transformers",) if table.has(f"prefill {name}")]
    lines.append(
        table.figure(
            f"{prefill}, our fastest against the fastest",
            "prefill",
            table.fastest("prefill", keys),
            table.fastest("prefill", everyone),
            FASTER,
        )
    )
    if table.has("decode transformers"):
        lines.append(table.figure(decode, "decode", our_decode, "transformers", DECODE_AGAINST_FLOAT32))
    return lines


def fastest_options(bench: Path, path: Path, n_threads: int, work: Work, keep: int = 2) -> list[Options]:
    """Try llama-bench's settings once each and return those with the fastest prefill, fastest first.

    Flash attention and repacked weights on and off; then smaller micro-batches with the best of these.
    """
    tried: dict[Options, float] = {}

    def attempt(options: Options) -> None:
        tried[options] = llama_bench.measure(bench, path, options, prefill=work.n_prefill)

    for flash, repack in itertools.product((True, False), (True, False)):
        attempt(Options(n_threads, flash, repack=repack))
    best = min(tried, key=tried.__getitem__)
    for n_ubatch in (256, 128):
        attempt(dataclasses.replace(best, n_ubatch=n_ubatch))
    return sorted(tried, key=tried.__getitem__)[:keep]


class Comparison:
    """The times of one group of candidates, all of one file, and the figures made of them."""

    def __init__(self, path: Path, times: dict[str, list[float]], work: Work) -> None:
        self._path = path
        self._times = times
        self._work = work

    def has(self, name: str) -> bool:
        """Whether the candidate took part."""
        return name in self._times

    def median_s(self, name: str) -> float:
        """Median time of a candidate."""
        return statistics.median(self._times[name])

    def fastest(self, kind: str, names: Iterable[str]) -> str:
        """Whose median is the smallest."""
        return min(names, key=lambda name: self.median_s(f"{kind} {name}"))

    def figure(self, title: str, kind: str, ours: str, peer: str, bound: float) -> Figure:
        """Our time over the peer's; speeds with their range, and the share of what the machine can do, in the note."""
        us, them = f"{kind} {ours}", f"{kind} {peer}"
        times_as_fast = self.median_s(them) / self.median_s(us)
        notes = [
            f"{self._speed(us, kind)} against {self._speed(them, kind)} tok/s: {times_as_fast:.2f}x",
            self._share(us, kind),
            ours,
            files.contents(self._path),
        ]
        return Figure(title, self.median_s(us), self.median_s(them), peer, bound, self._work.rounds, "; ".join(notes))

    def _speed(self, name: str, kind: str) -> str:
        n, times = self._work.n_tokens(kind), self._times[name]
        return f"{n / statistics.median(times):.1f} ({n / max(times):.1f}-{n / min(times):.1f})"

    def _share(self, name: str, kind: str) -> str:
        if kind == "decode":
            rate = files.bytes_per_token(self._path) * self._work.n_decode / self.median_s(name) / _GIGA
            most = 1 / self.median_s("memory")
            return f"{rate / most:.0%} of {most:.1f} GB/s"
        rate = 2 * files.multiply_adds(self._path, self._work.n_prefill) / self.median_s(name) / _GIGA
        most = 2 / self.median_s("arithmetic")
        return f"{rate / most:.0%} of {most:.0f} GFLOP/s"


def _key(setting: Setting, flash: bool) -> str:
    return f"{setting.name}, {'flash' if flash else 'no flash'}"


@contextlib.contextmanager
def _ours(path: Path, n_threads: int, flashes: tuple[bool, ...]) -> Iterator[dict[str, Worker]]:
    """A process for each of our settings and each way of attention, by ``_key``."""
    with contextlib.ExitStack() as stack:
        workers = {}
        for setting, flash in itertools.product(OURS, flashes):
            load = {"n_threads": n_threads} | setting.load
            session = {"n_ctx": N_PREFILL, "n_batch": N_PREFILL, "flash_attn": flash} | setting.session
            command = (sys.executable, "-m", "benchmarks.our_side", path, json.dumps(load), json.dumps(session))
            workers[_key(setting, flash)] = stack.enter_context(Worker(*command, env=setting.env))
        yield workers


def _candidates(workers: dict[str, Worker], work: Work) -> dict[str, Candidate]:
    def asking(worker: Worker, kind: str) -> Candidate:
        return lambda: float(worker.ask(kind, n=work.n_tokens(kind)))

    return {f"{kind} {key}": asking(w, kind) for key, w in workers.items() for kind in ("decode", "prefill")}


def _bench(bench: Path, path: Path, options: Options, kind: str, work: Work) -> Candidate:
    return lambda: llama_bench.measure(bench, path, options, **{kind: work.n_tokens(kind)})


def _probes(probe: Probe, n_threads: int) -> dict[str, Candidate]:
    """Seconds for a gigabyte read and for a billion multiply-adds."""
    return {
        "memory": lambda: _GIGA / probe.read_bytes_per_s(n_threads),
        "arithmetic": lambda: _GIGA / probe.multiply_adds_per_s(n_threads),
    }


def _transformers(torch: Worker, work: Work, with_decode: bool) -> dict[str, Candidate]:
    """transformers decodes an eighth of the tokens, its time taken eight times: it is that slow."""
    found: dict[str, Candidate] = {"prefill transformers": lambda: float(torch.ask("prefill", n=work.n_prefill))}
    if with_decode:
        n = max(4, work.n_decode // 8)
        found["decode transformers"] = lambda: float(torch.ask("decode", n=n)) * work.n_decode / n
    return found
