"""Tiny random llama models: weights by numpy, files by the gguf package, which shares no code with kit."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import gguf
import numpy as np

N_WORDS = 5  # words beside <unk>, <s>, </s> and the 256 bytes of the vocabulary


Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclasses.dataclass
class Tiny:
    """Sizes of a model and its weights, float32 in numpy order by GGUF name.

    ``weights`` are always apart; ``joined`` writes q, k and v as one tensor, and gate and up. ``n_ctx_orig``,
    ``rope_magnitude`` and the like are the metadata's, ``temperature`` makes it a mistral3.
    """

    n_layer: int = 2
    n_embd: int = 64
    n_head: int | list[int] = 4
    n_head_kv: int | list[int] = 2
    head_dim: int = 16
    n_ff: int | list[int] = 96
    n_vocab: int = 259 + N_WORDS
    n_expert: int = 0
    n_expert_used: int = 0
    rope_base: float = 10000.0
    rope_scaling: str = ""
    rope_factor: float = 1.0
    rope_magnitude: float = 1.0
    rope_log_multiplier: float = 0.0
    rope_betas: tuple[float, float] = (32.0, 1.0)
    n_ctx_orig: int = 512
    temperature: float = 0.0
    window: int = 0
    eps: float = 1e-5
    untied: bool = False
    rope_factors: bool = False
    biases: bool = False
    joined: bool = False
    weights: dict[str, Array] = dataclasses.field(default_factory=dict)

    def sizes(self, layer: int) -> tuple[int, int, int]:
        """Heads, kv heads and hidden units of one block."""
        heads, kv, hidden = (
            size[layer] if isinstance(size, list) else size for size in (self.n_head, self.n_head_kv, self.n_ff)
        )
        return heads, kv, hidden

    def __post_init__(self) -> None:
        """Draw the weights; each kind of model draws the same ones every time."""
        rng = np.random.default_rng([self.n_layer, self.n_embd, *self.sizes(0), self.head_dim])

        def draw(*shape: int, scale: float, mean: float = 0.0) -> Array:
            return (mean + scale * rng.standard_normal(shape)).astype(np.float32)

        def matrix(*shape: int) -> Array:
            return draw(*shape, scale=shape[-1] ** -0.5)

        put, embd = self.weights, self.n_embd
        put["token_embd.weight"] = draw(self.n_vocab, embd, scale=1.0)
        if self.rope_factors:
            put["rope_freqs.weight"] = np.linspace(1, 8, self.head_dim // 2, dtype=np.float32)
        if self.rope_scaling == "longrope":
            put["rope_factors_short.weight"] = np.linspace(1, 2, self.head_dim // 2, dtype=np.float32)
            put["rope_factors_long.weight"] = np.linspace(2, 9, self.head_dim // 2, dtype=np.float32)
        for i in range(self.n_layer):
            at, (n_head, n_head_kv, n_ff) = f"blk.{i}.", self.sizes(i)
            heads, kv = n_head * self.head_dim, n_head_kv * self.head_dim
            shapes = {"attn_q": (heads, embd), "attn_k": (kv, embd), "attn_v": (kv, embd), "attn_output": (embd, heads)}
            if self.n_expert:
                inner, outer = (self.n_expert, n_ff, embd), (self.n_expert, embd, n_ff)
                shapes |= {"ffn_gate_exps": inner, "ffn_up_exps": inner, "ffn_down_exps": outer}
                shapes |= {"ffn_gate_inp": (self.n_expert, embd)}
            else:
                shapes |= {"ffn_gate": (n_ff, embd), "ffn_up": (n_ff, embd), "ffn_down": (embd, n_ff)}
            for name, shape in shapes.items():
                put[f"{at}{name}.weight"] = matrix(*shape)
                if self.biases:
                    put[f"{at}{name}.bias"] = draw(shape[0], scale=0.3)
            put[at + "attn_norm.weight"] = draw(embd, scale=0.1, mean=1.0)
            put[at + "ffn_norm.weight"] = draw(embd, scale=0.1, mean=1.0)
        put["output_norm.weight"] = draw(embd, scale=0.1, mean=1.0)
        if self.untied:
            put["output.weight"] = matrix(self.n_vocab, embd)

    def tensors(self) -> dict[str, Array]:
        """The weights as they lie in the file."""
        if not self.joined:
            return self.weights
        parts = {"attn_qkv": ["attn_q", "attn_k", "attn_v"], "ffn_gate_up": ["ffn_gate", "ffn_up"]}
        parts["ffn_gate_up_exps"] = ["ffn_gate_exps", "ffn_up_exps"]
        left, made = dict(self.weights), {}
        for i in range(self.n_layer):
            for whole, names in parts.items():
                for kind, axis in (("weight", -2), ("bias", -1)):
                    keys = [f"blk.{i}.{name}.{kind}" for name in names]
                    if all(key in left for key in keys):
                        made[f"blk.{i}.{whole}.{kind}"] = np.concatenate([left.pop(key) for key in keys], axis)
        return left | made


YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "n_ctx_orig": 64}
LONGROPE = {"rope_scaling": "longrope", "rope_magnitude": 1.2}
MIXTURE = {"n_expert": 4, "n_expert_used": 2, "untied": True}

KINDS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one-kv-head": {"n_head_kv": 1},
    "all-heads-own": {"n_head_kv": 4, "n_layer": 3},
    "wide-heads-untied": {"n_embd": 96, "n_head": 4, "head_dim": 32, "untied": True, "rope_base": 1e6},
    "narrow-heads": {"n_embd": 160, "n_head": 4, "head_dim": 32},
    "sizes-per-block": {"n_layer": 3, "n_head": [4, 2, 6], "n_head_kv": [2, 1, 6], "n_ff": [96, 32, 64]},
    "biased": {"biases": True},
    "joined": {"joined": True},
    "joined-biased-per-block": {
        "joined": True,
        "biases": True,
        "n_head": [4, 2],
        "n_head_kv": [1, 2],
        "n_ff": [64, 96],
    },
    "experts": MIXTURE,
    "one-of-eight-experts": {"n_expert": 8, "n_expert_used": 1, "n_layer": 3},
    "joined-experts": MIXTURE | {"joined": True, "n_expert": 8, "n_expert_used": 3},
    "rope-factors": {"rope_factors": True, "rope_base": 500000.0},
    "rope-scaled": {"rope_scaling": "linear", "rope_factor": 4.0},
    "rope-scaling-none": {"rope_scaling": "none", "rope_factor": 4.0},
    "yarn": YARN,
    "yarn-betas": YARN | {"rope_betas": (8.0, 2.0), "rope_magnitude": 0.9, "rope_log_multiplier": 0.5, "head_dim": 32},
    "longrope-beyond-training": LONGROPE | {"n_ctx_orig": 8},
    "longrope-as-trained": LONGROPE | {"n_ctx_orig": 64},
    "mistral3": YARN | {"temperature": 0.1, "n_ctx_orig": 8, "rope_log_multiplier": 1.0, "head_dim": 32},
    "window": {"window": 4},
}

UNSET = object()


Raw = tuple[np.ndarray[Any, np.dtype[np.uint8]], int]


def write(
    path: str | os.PathLike[str],
    model: Tiny,
    *,
    vocab: bool = True,
    raw: dict[str, Raw] | None = None,
    split: int = 0,
    empty_first: bool = False,
    **changes: Any,
) -> None:
    """Write ``model``; ``changes`` replace metadata values by key (dots as two underscores), UNSET leaves one out.

    ``raw`` are tensors' bytes in ggml types, by ggml's numbers, instead of float32. ``split`` is the number of
    tensors in each part of a split file, ``empty_first`` gives the first part none.
    """
    architecture = changes.pop("architecture", "mistral3" if model.temperature else "llama")
    values = _metadata(model) | {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(os.fspath(path), architecture, split_max_tensors=split, small_first_shard=empty_first)
    for key, value in values.items():
        if value is not UNSET:
            _add(writer, f"{architecture}.{key}", value)
    if vocab:
        _add_vocabulary(writer)
    for name, array in model.tensors().items():
        if raw and name in raw:
            data, number = raw[name]  # as int8, whose shape the writer does not reckon out of bytes
            writer.add_tensor(name, data.view(np.int8), raw_shape=array.shape, raw_dtype=number)  # type: ignore[arg-type]
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(model: Tiny) -> dict[str, Any]:
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
    if model.n_expert:
        values |= {"expert_count": model.n_expert, "expert_used_count": model.n_expert_used}
    if model.rope_scaling:
        values |= {"rope.scaling.type": model.rope_scaling, "rope.scaling.factor": model.rope_factor}
        values |= {"rope.scaling.original_context_length": model.n_ctx_orig}
    if model.rope_magnitude != 1:
        values["rope.scaling.attn_factor"] = model.rope_magnitude
    if model.rope_log_multiplier:
        values["rope.scaling.yarn_log_multiplier"] = model.rope_log_multiplier
    if model.rope_betas != (32.0, 1.0):
        fast, slow = model.rope_betas
        values |= {"rope.scaling.yarn_beta_fast": fast, "rope.scaling.yarn_beta_slow": slow}
    if model.temperature:
        values["attention.temperature_scale"] = model.temperature
    if model.window:
        values["attention.sliding_window"] = model.window
    return values


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
