"""Tokens one after the other: the graph built once and reused, and built anew for each token."""

from __future__ import annotations

import kit
from benchmarks.measure import Figure, interleaved

N_TOKENS = 32


def run(rounds: int, scale: float) -> list[Figure]:
    """Decode ``N_TOKENS`` tokens per round after a short prompt, on the demo model."""
    n = max(2, int(N_TOKENS * scale))
    with kit.load("smollm2-135m", progress=False) as model, model.session(n_ctx=256, n_batch=32) as session:

        def decode(rebuild: bool) -> None:
            session.reset()
            for token in range(1000, 1000 + n):
                if rebuild:
                    session.runner.passes.forget()
                session.run([token], logits="last")

        times = interleaved({"reused": lambda: decode(False), "rebuilt": lambda: decode(True)}, rounds)
    note = f"{n / times['reused']:.1f} against {n / times['rebuilt']:.1f} tokens/s"
    return [Figure("decoding with a reused graph", times["reused"], times["rebuilt"], "rebuilt", 1.0, rounds, note)]
