"""Tiny random llama models: weights by numpy, files by the gguf package, which shares no code with kit."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import gguf
import numpy as np

N_WORDS = 5  # words beside <unk>, <s>, </s> and the 256 bytes of the vocabulary


@dataclasses.dataclass
class Tiny:
    """Sizes of a model and its weights, float32 in numpy order by GGUF name."""

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = 259 + N_WORDS
    rope_base: float = 10000.0
    rope_scale: float = 1.0
    eps: float = 1e-5
    untied: bool = False
    rope_factors: bool = False
    biases: bool = False
    weights: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Draw the weights; each kind of model draws the same ones every time."""
        rng = np.random.default_rng([self.n_layer, self.n_embd, self.n_head, self.n_head_kv, self.head_dim])

        def draw(*shape: int, scale: float, mean: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
            return (mean + scale * rng.standard_normal(shape)).astype(np.float32)

        def matrix(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
            return draw(rows, columns, scale=columns**-0.5)

        heads, kv = self.n_head * self.head_dim, self.n_head_kv * self.head_dim
        put = self.weights
        put["token_embd.weight"] = draw(self.n_vocab, self.n_embd, scale=1.0)
        if self.rope_factors:
            put["rope_freqs.weight"] = np.linspace(1, 8, self.head_dim // 2, dtype=np.float32)
        for i in range(self.n_layer):
            at = f"blk.{i}."
            for name, rows, columns in (
                ("attn_q", heads, self.n_embd),
                ("attn_k", kv, self.n_embd),
                ("attn_v", kv, self.n_embd),
                ("attn_output", self.n_embd, heads),
                ("ffn_gate", self.n_ff, self.n_embd),
                ("ffn_up", self.n_ff, self.n_embd),
                ("ffn_down", self.n_embd, self.n_ff),
            ):
                put[f"{at}{name}.weight"] = matrix(rows, columns)
                if self.biases and name.startswith("attn"):
                    put[f"{at}{name}.bias"] = draw(rows, scale=0.3)
            put[at + "attn_norm.weight"] = draw(self.n_embd, scale=0.1, mean=1.0)
            put[at + "ffn_norm.weight"] = draw(self.n_embd, scale=0.1, mean=1.0)
        put["output_norm.weight"] = draw(self.n_embd, scale=0.1, mean=1.0)
        if self.untied:
            put["output.weight"] = matrix(self.n_vocab, self.n_embd)


KINDS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one-kv-head": {"n_head_kv": 1},
    "all-heads-own": {"n_head_kv": 4, "n_layer": 3},
    "wide-heads-untied": {"n_embd": 96, "n_head": 4, "head_dim": 32, "untied": True, "rope_base": 1e6},
    "narrow-heads": {"n_embd": 160, "n_head": 4, "head_dim": 32},
    "rope-factors": {"rope_factors": True, "rope_base": 500000.0},
    "rope-scaled": {"rope_scale": 0.25},
    "biased": {"biases": True},
}

UNSET = object()


def write(
    path: str | os.PathLike[str],
    model: Tiny,
    *,
    vocab: bool = True,
    split: int = 0,
    empty_first: bool = False,
    **changes: Any,
) -> None:
    """Write ``model``; ``changes`` replace metadata values by key (dots as two underscores), UNSET leaves one out.

    ``split`` is the number of tensors in each part of a split file, ``empty_first`` gives the first part none.
    """
    values: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": model.n_embd,
        "block_count": model.n_layer,
        "feed_forward_length": model.n_ff,
        "attention.head_count": model.n_head,
        "attention.head_count_kv": model.n_head_kv,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": model.eps,
        "rope.dimension_count": model.head_dim,
        "rope.freq_base": model.rope_base,
    }
    if model.rope_scale != 1:
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": 1 / model.rope_scale}
    values |= {key.replace("__", "."): value for key, value in changes.items() if key != "architecture"}
    writer = gguf.GGUFWriter(
        os.fspath(path), changes.get("architecture", "llama"), split_max_tensors=split, small_first_shard=empty_first
    )
    for key, value in values.items():
        if value is not UNSET:
            _add(writer, "llama." + key, value)
    if vocab:
        _add_vocabulary(writer)
    for name, array in model.weights.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """A SentencePiece vocabulary of bytes, id = byte + 3, and a few words no text ever becomes."""
    kinds = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"w{i}" for i in range(N_WORDS))]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * N_WORDS]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
