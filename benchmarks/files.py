"""The demo model in other types, made by llama.cpp's own quantizer; and what a file asks of a machine."""

from __future__ import annotations

from pathlib import Path

import kit
from benchmarks.peers import llamacpp, store

#: As llama-quantize names them. The demo model's 576 columns are no multiple of 256: where a K type does not fit, the
#: quantizer takes another; ``contents`` says what a file really has.
TYPES = {"Q4_1": "", "Q4_0": "Q4_0", "Q4_K": "Q4_K_S", "Q8_0": "Q8_0", "F16": "F16"}


def model_file(type_name: str) -> Path:
    """Return the demo model in a type of TYPES; Q4_1 is the file as it came, the others are made from it once."""
    demo = kit.find_model("smollm2-135m")
    scheme = TYPES[type_name]
    return store.made_once(f"smollm2-135m-{scheme}.gguf", lambda part: quantize(demo, part, scheme)) if scheme else demo


def quantize(source: Path, target: Path, scheme: str) -> None:
    """Write a copy of ``source`` in another type with llama-quantize; PeerMissing with its words if it refuses."""
    store.run(llamacpp.programs() / "llama-quantize", "--allow-requantize", source, target, scheme)


def contents(path: Path) -> str:
    """Name the types of a file's tensors, most bytes first: ``Q5_0 62%, Q8_0 26%, Q4_K 12%``."""
    with kit.GGUFFile(path) as file:
        shares = file.types()
    total = sum(share.nbytes for share in shares.values())
    parts = [f"{name.upper()} {share.nbytes / total:.0%}" for name, share in shares.items()]
    return ", ".join(part for part in parts if not part.endswith(" 0%"))


def bytes_per_token(path: Path) -> int:
    """Bytes of weights that decoding one token reads: all of them, less an embedding that is not the output too."""
    with kit.GGUFFile(path) as file:
        total = sum(info.nbytes for info in file.tensors.values())
        tied = "output.weight" not in file.tensors
        return total if tied else total - file.tensors["token_embd.weight"].nbytes


def multiply_adds(path: Path, n_tokens: int) -> float:
    """Multiply-adds of one prefill of ``n_tokens`` from an empty cache, of which the last token's logits are wanted.

    One for each weight of the blocks' matrices and token; for each block, head and pair of positions that sees
    another, head_dim for the score and as many for the mixed value; the output's matrix once.
    """
    with kit.GGUFFile(path) as file:
        matrices = sum(
            info.n_elements for name, info in file.tensors.items() if name.startswith("blk.") and len(info.ne) > 1
        )
        output = file.tensors["output.weight" if "output.weight" in file.tensors else "token_embd.weight"]
        arch = file.architecture
        n_layer, n_embd = (int(file.metadata[f"{arch}.{key}"]) for key in ("block_count", "embedding_length"))
    pairs = n_tokens * (n_tokens + 1) / 2
    return matrices * n_tokens + output.n_elements + n_layer * 2 * n_embd * pairs
