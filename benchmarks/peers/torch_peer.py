"""transformers with torch's CPU kernels, in an environment of its own: about 1 GB of packages, installed once."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.peers import store
from benchmarks.peers.store import PeerMissing
from benchmarks.worker import Worker

VERSION = "5.24.0"
_REQUIREMENTS = (
    "torch==2.13.0",
    f"transformers=={VERSION}",
    "accelerate>=1",
    "gguf>=0.17",
    "safetensors>=0.5",
    "numpy>=1.26",
)
_SIDE = Path(__file__).with_name("torch_side.py")
_WORKER = Path(__file__).parent.parent / "worker.py"

#: Nothing is asked of a hub, and numpy's or torch's BLAS picks the kernels it would pick itself.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def python() -> Path:
    """Return the interpreter that has torch and transformers; PeerMissing says why there is none.

    KIT_BENCH_TRANSFORMERS names one to use instead; set to nothing, the peer is left out.
    """
    chosen = os.environ.get("KIT_BENCH_TRANSFORMERS")
    if chosen == "":
        raise PeerMissing("transformers is left out: KIT_BENCH_TRANSFORMERS is empty")
    if chosen:
        return Path(chosen).expanduser()
    return store.environment("transformers", *_REQUIREMENTS, check="import torch, transformers")


def checkpoint(gguf: Path) -> Path:
    """Return the folder of the file's weights in float32, made by transformers' own GGUF reader if missing."""
    name = f"float32-{gguf.stem}-{gguf.stat().st_size}"
    return store.made_once(name, lambda part: _dequantize(gguf, part))


def _dequantize(gguf: Path, part: Path) -> None:
    store.run(python(), _SIDE, "weights", gguf.resolve(), part, env=ENVIRONMENT)


def serving(folder: Path, n_threads: int) -> Worker:
    """Return a process that holds the model and answers ``prefill``, ``decode`` and ``next``."""
    return Worker(python(), _SIDE, "serve", folder, n_threads, _WORKER, env=ENVIRONMENT)


def first_token(folder: Path, n_threads: int, ids: list[int]) -> list[str]:
    """Return the command that prints the likeliest token after ``ids``."""
    return [str(part) for part in (python(), _SIDE, "first", folder, n_threads, *ids)]
