"""kit in a process of its own, asked by ``engine``: ``python -m benchmarks.our_side FILE LOAD SESSION`` (JSON)."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import kit
from benchmarks.worker import serve

FIRST_TOKEN = 1000


def main(path: str, load: str, session: str) -> None:
    """Open the file with these keyword arguments, then answer."""
    with kit.load(Path(path), progress=False, **json.loads(load)) as model, model.session(**json.loads(session)) as s:

        def decode(n: int) -> float:
            s.reset()
            started = time.perf_counter()
            for token in range(FIRST_TOKEN, FIRST_TOKEN + n):
                s.run([token], logits="last")
            return time.perf_counter() - started

        def prefill(n: int) -> float:
            s.reset()
            ids = list(range(FIRST_TOKEN, FIRST_TOKEN + n))
            started = time.perf_counter()
            s.run(ids, logits="last")
            return time.perf_counter() - started

        serve({"decode": decode, "prefill": prefill}, repr(s))


if __name__ == "__main__":
    main(*sys.argv[1:])
