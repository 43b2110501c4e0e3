"""Make llama_cpp_logits.npz: logits of the tiny models of `tests.models.tiny` by llama.cpp itself.

Run from the repository's root where llama-cpp-python and gguf are installed (these were made with 0.3.36, built from
its source distribution, whose ggml is 0.25.3; the cache in float32)::

    python -m tests.models.data.make_llama_cpp_logits

Kinds are left out that llama.cpp refuses (joined gate and up, heads that differ between blocks) or reads otherwise: it
ignores a llama's window, the keys of yarn's betas and its multiplier, and rounds a context up to 256 tokens.
"""

from __future__ import annotations

import pathlib
import tempfile

import llama_cpp
import numpy as np

from tests.models import tiny

IDS = [1, 100, 7, 42, 42, 250, 3, 99, 180, 12, 5]
EVERY = 8  # of the vocabulary, to keep the file small
REFUSED = ("joined", "joined-biased-per-block", "joined-experts", "sizes-per-block")
READ_OTHERWISE = ("longrope-as-trained", "window", "yarn-betas")


def logits(path: pathlib.Path) -> np.ndarray:
    """Return llama.cpp's logits (tokens, a part of the vocabulary)."""
    settings = {"type_k": 0, "type_v": 0, "flash_attn": False, "n_threads": 1, "logits_all": True, "verbose": False}
    model = llama_cpp.Llama(str(path), n_ctx=64, **settings)
    model.eval(IDS)
    rows = np.array(model.scores[: len(IDS)], np.float32)
    model.close()
    return np.ascontiguousarray(rows[:, ::EVERY])


def main() -> None:
    """Write the file beside this one."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in (kind for kind in tiny.KINDS if kind not in REFUSED + READ_OTHERWISE):
            path = pathlib.Path(folder) / f"{kind}.gguf"
            tiny.write(path, tiny.Tiny(**tiny.KINDS[kind]))
            found[kind] = logits(path)
    np.savez_compressed(pathlib.Path(__file__).with_name("llama_cpp_logits.npz"), **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
