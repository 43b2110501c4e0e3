"""What tracking costs while the demo model decodes: nobody tracks, ggml level, with Python stacks, idle afterwards."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Iterator

import kit
from benchmarks.measure import Figure, interleaved

N_TOKENS = 32


_TWIN = """
import sys, time
import kit
from benchmarks.memory_tracking import decode
with kit.load("smollm2-135m", progress=False) as model, model.session(n_ctx=256, n_batch=32) as session:
    if sys.argv[1] == "used":
        with kit.Tracker():
            decode(session, 4)
    for line in sys.stdin:
        started = time.perf_counter()
        decode(session, int(line))
        print(time.perf_counter() - started, flush=True)
"""


def decode(session: kit.Session, n: int) -> None:
    """Run ``n`` tokens one after the other."""
    session.reset()
    for token in range(1000, 1000 + n):
        session.run([token], logits="last")


def run(rounds: int, scale: float) -> list[Figure]:
    """Decode ``N_TOKENS`` tokens per round in each state; idle is measured in processes that take turns."""
    n = max(2, int(N_TOKENS * scale))
    with kit.load("smollm2-135m", progress=False) as model, model.session(n_ctx=256, n_batch=32) as session:

        def tracked(stacks: bool) -> float:
            with kit.Tracker(stacks=stacks):
                started = time.perf_counter()
                decode(session, n)
                return time.perf_counter() - started

        def start_and_stop() -> None:
            with kit.Tracker():
                pass

        times = interleaved(
            {
                "untracked": lambda: decode(session, n),
                "ggml": lambda: tracked(False),
                "stacks": lambda: tracked(True),
                "start": start_and_stop,
            },
            rounds,
        )
    with _twin("used") as used, _twin("fresh") as fresh, _twin("fresh") as other:
        names = {"idle": used, "fresh": fresh, "other": other}
        idle = interleaved({name: functools.partial(_ask, twin, n) for name, twin in names.items()}, rounds)
    noise = abs(idle["other"] / idle["fresh"] - 1)
    note = f"two that never tracked differ by {noise:.3f}, and so much is allowed"
    return [
        Figure("decoding tracked at ggml level", times["ggml"], times["untracked"], "untracked", 1.02, rounds),
        Figure("decoding tracked with stacks", times["stacks"], times["untracked"], "untracked", 1.05, rounds),
        Figure("decoding after tracking", idle["idle"], idle["fresh"], "never tracked", 1.0 + noise, rounds, note),
        Figure("starting and ending a tracker (s)", times["start"], rounds=rounds),
    ]


@contextlib.contextmanager
def _twin(state: str) -> Iterator[subprocess.Popen[str]]:
    """A process that decodes when it is asked, and has used a tracker before or never."""
    command = [sys.executable, "-c", _TWIN, state]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as twin:
        yield twin


def _ask(twin: subprocess.Popen[str], n: int) -> float:
    assert twin.stdin is not None
    assert twin.stdout is not None
    print(n, file=twin.stdin, flush=True)
    return float(twin.stdout.readline())
