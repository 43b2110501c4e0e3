"""transformers on float32 weights, in the environment of the peer: ``torch_side.py weights|serve|first ...``.

Run as a file; it imports nothing of kit or of the benchmarks but the protocol of ``worker.py``, whose path it is given.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable


def main(task: str, *arguments: str) -> None:
    tasks: dict[str, Callable[..., None]] = {"weights": weights, "serve": serve, "first": first}
    tasks[task](*arguments)


def weights(gguf: str, folder: str) -> None:
    """Dequantize a GGUF file to a Hugging Face checkpoint in float32."""
    import os

    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        os.path.dirname(gguf), gguf_file=os.path.basename(gguf), dtype=torch.float32
    )
    config = model.config
    del config.quantization_config  # a model that came from GGUF refuses to be saved
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)


def serve(folder: str, n_threads: str, worker: str) -> None:
    """Answer ``prefill`` and ``decode`` with seconds, ``next`` with the likeliest token after some."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(n_threads))
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ids(n: int) -> torch.Tensor:
        return torch.arange(1000, 1000 + n)[None]

    def prefill(n: int) -> float:
        tokens = ids(n)
        started = time.perf_counter()
        model(tokens, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - started

    def decode(n: int) -> float:
        past = None
        started = time.perf_counter()
        for token in ids(n)[0]:
            past = model(token[None, None], past_key_values=past, use_cache=True).past_key_values
        return time.perf_counter() - started

    def likeliest(tokens: list[int]) -> int:
        return int(model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].argmax())

    spec = importlib.util.spec_from_file_location("worker", worker)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.serve({"prefill": prefill, "decode": decode, "next": likeliest}, torch.__version__)


def first(folder: str, n_threads: str, *tokens: str) -> None:
    """Print the likeliest token after ``tokens``: what a cold process does up to there is what is timed."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(n_threads))
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = torch.tensor([[int(token) for token in tokens]])
        print(int(model(ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
