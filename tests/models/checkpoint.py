"""Tiny Hugging Face checkpoints with random weights, and their forward pass in numpy, in Hugging Face's conventions.

The files are written byte by byte from the description of the safetensors format. The pass is written from the
papers (RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, grouped queries arXiv:2305.13245, SwiGLU arXiv:2002.05202,
mixtures of experts arXiv:2401.04088) with the rotation as transformers documents it: the two numbers of a pair lie
half a head apart. It shares nothing with kit or with tests/models/reference.py, whose pairs are neighbours.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import struct
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

Array = np.ndarray[Any, Any]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
N_TOKENS = 256 + 3 + len(SPECIAL)


@dataclasses.dataclass
class Checkpoint:
    """Sizes of a model, its config.json (``fields`` added) and its weights by Hugging Face's names."""

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_vocab: int = N_TOKENS + 2
    rope_base: float = 10000.0
    tied: bool = True
    biases: bool = False
    mlp_biases: bool = False
    n_expert: int = 0
    stored: str = "F32"
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    weights: dict[str, Array] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.n_layer, self.n_embd, self.n_head_kv, self.head_dim, self.n_expert])
        put, heads, kv = self.weights, self.n_head * self.head_dim, self.n_head_kv * self.head_dim

        def matrix(name: str, rows: int, columns: int, bias: bool = False) -> None:
            put[name + ".weight"] = rng.standard_normal((rows, columns)) * columns**-0.5
            if bias:
                put[name + ".bias"] = rng.standard_normal(rows) * 0.3

        put["model.embed_tokens.weight"] = rng.standard_normal((self.n_vocab, self.n_embd))
        for i in range(self.n_layer):
            at = f"model.layers.{i}."
            matrix(at + "self_attn.q_proj", heads, self.n_embd, self.biases)
            matrix(at + "self_attn.k_proj", kv, self.n_embd, self.biases)
            matrix(at + "self_attn.v_proj", kv, self.n_embd, self.biases)
            matrix(at + "self_attn.o_proj", self.n_embd, heads, self.biases)
            parts = [("gate_proj", self.n_ff, self.n_embd), ("up_proj", self.n_ff, self.n_embd)]
            parts.append(("down_proj", self.n_embd, self.n_ff))
            if self.n_expert:
                matrix(at + "block_sparse_moe.gate", self.n_expert, self.n_embd)
            for expert in range(self.n_expert):
                for (_, rows, columns), name in zip(parts, ("w1", "w3", "w2"), strict=True):
                    matrix(f"{at}block_sparse_moe.experts.{expert}.{name}", rows, columns)
            for name, rows, columns in [] if self.n_expert else parts:
                matrix(f"{at}mlp.{name}", rows, columns, self.mlp_biases)
            for name in ("input_layernorm", "post_attention_layernorm"):
                put[f"{at}{name}.weight"] = 1 + 0.1 * rng.standard_normal(self.n_embd)
        put["model.norm.weight"] = 1 + 0.1 * rng.standard_normal(self.n_embd)
        if not self.tied:
            matrix("lm_head", self.n_vocab, self.n_embd)
        for name, value in put.items():
            put[name] = rounded(value, self.stored)

    @property
    def config(self) -> dict[str, Any]:
        """config.json as transformers writes it."""
        kind = "mixtral" if self.n_expert else "llama"
        found = {
            "architectures": [f"{kind.title()}ForCausalLM"],
            "model_type": kind,
            "hidden_size": self.n_embd,
            "intermediate_size": self.n_ff,
            "num_hidden_layers": self.n_layer,
            "num_attention_heads": self.n_head,
            "num_key_value_heads": self.n_head_kv,
            "head_dim": self.head_dim,
            "vocab_size": self.n_vocab,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.rope_base,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.biases,
            "mlp_bias": self.mlp_biases,
            "hidden_act": "silu",
            "bos_token_id": 256 + 3,
            "eos_token_id": 256 + 3,
            "torch_dtype": "float32",
        }
        if self.n_expert:
            found |= {"num_local_experts": self.n_expert, "num_experts_per_tok": 2}
        return {key: value for key, value in (found | self.fields).items() if value != "absent"}

    def write(self, folder: pathlib.Path, *, shards: int = 1, **tokenizer: Any) -> pathlib.Path:
        """Write config, weights in so many files, and a byte-level tokenizer; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", self.config)
        names = list(self.weights)
        parts = [names[i::shards] for i in range(shards)]
        weight_map = {}
        for number, part in enumerate(parts, 1):
            file = f"model-{number:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
            write_safetensors(folder / file, {name: self.weights[name] for name in part}, self.stored)
            weight_map |= dict.fromkeys(part, file)
        if shards > 1:
            write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
        write_json(folder / "tokenizer.json", tokenizer_json(**tokenizer))
        return folder


def rounded(values: Array, stored: str) -> Array:
    """Return ``values`` as float32 that the stored type holds exactly."""
    if stored == "F16":
        return values.astype(np.float16).astype(np.float32)
    single = np.ascontiguousarray(values, np.float32)
    return (single.view(np.uint32) & 0xFFFF0000).view(np.float32) if stored == "BF16" else single


def stored_bytes(values: Array, stored: str) -> bytes:
    """Return ``values`` as a safetensors file holds them."""
    if stored == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype("<f2" if stored == "F16" else "<f4").tobytes()


def write_safetensors(path: pathlib.Path, tensors: dict[str, Array], stored: str = "F32") -> None:
    """Write one file: header length, header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = stored_bytes(values, stored)
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": stored, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path: pathlib.Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """Return a byte-level BPE tokenizer of all bytes, two merges, and three special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*letters, "th", "the", "Ġthe"])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": 259 + i, "content": text, **flags} for i, text in enumerate(SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"]],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None,
        "decoder": level,
        "model": model,
    } | changes


def forward(model: Checkpoint, ids: list[int]) -> Array:
    """Return the logits (n, n_vocab) of a prompt, float64."""
    weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
    stream = weights["model.embed_tokens.weight"][ids]
    for layer in range(model.n_layer):
        at = f"model.layers.{layer}."
        stream = stream + _attention(model, weights, at + "self_attn.", _norm(weights, at + "input_layernorm", stream))
        h = _norm(weights, at + "post_attention_layernorm", stream)
        stream = stream + (_experts(model, weights, at, h) if model.n_expert else _mlp(weights, at + "mlp.", h))
    head = weights["model.embed_tokens.weight" if model.tied else "lm_head.weight"]
    return _norm(weights, "model.norm", stream) @ head.T


def _norm(weights: dict[str, Array], name: str, x: Array) -> Array:
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5) * weights[name + ".weight"]


def _linear(weights: dict[str, Array], name: str, x: Array) -> Array:
    return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _mlp(weights: dict[str, Array], at: str, h: Array) -> Array:
    gate, up = _linear(weights, at + "gate_proj", h), _linear(weights, at + "up_proj", h)
    return _linear(weights, at + "down_proj", _silu(gate) * up)


def _experts(model: Checkpoint, weights: dict[str, Array], at: str, h: Array) -> Array:
    at += "block_sparse_moe."
    routed = np.exp(_linear(weights, at + "gate", h))
    out = np.zeros_like(h)
    for token, row in enumerate(routed):
        chosen = np.argsort(-row)[:2]
        for expert in chosen:
            name = f"{at}experts.{expert}."
            act = _silu(_linear(weights, name + "w1", h[token])) * _linear(weights, name + "w3", h[token])
            out[token] += row[expert] / row[chosen].sum() * _linear(weights, name + "w2", act)
    return out


def _attention(model: Checkpoint, weights: dict[str, Array], at: str, h: Array) -> Array:
    n, size = len(h), model.head_dim
    q = _rotate(model, _linear(weights, at + "q_proj", h).reshape(n, model.n_head, size))
    q = q * _query_scale(model, n)[:, None, None]
    k = _rotate(model, _linear(weights, at + "k_proj", h).reshape(n, model.n_head_kv, size))
    v = _linear(weights, at + "v_proj", h).reshape(n, model.n_head_kv, size)
    k, v = (np.repeat(x, model.n_head // model.n_head_kv, 1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
    back = np.arange(n)[:, None] - np.arange(n)[None, :]
    scores[:, (back < 0) | (back >= (model.fields.get("sliding_window") or n))] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return _linear(weights, at + "o_proj", np.einsum("hqk,khd->qhd", scores, v).reshape(n, -1))


def _query_scale(model: Checkpoint, n: int) -> Array:
    """Return (n,) factors: Ministral 3's scaling of queries beyond the original context, as transformers has it."""
    settings = model.fields.get("rope_parameters") or {}
    context = settings.get("original_max_position_embeddings", 1)
    return 1 + settings.get("llama_4_scaling_beta", 0.0) * np.log(1 + np.floor(np.arange(n) / context))


def _rotate(model: Checkpoint, x: Array) -> Array:
    """x * cos + rotate_half(x) * sin, the angles of a head repeated once, as transformers documents it."""
    half = model.head_dim // 2
    angles = np.arange(len(x))[:, None] * frequencies(model)
    size = magnitude(model)
    cos, sin = (size * np.concatenate([f(angles), f(angles)], -1)[:, None, :] for f in (np.cos, np.sin))
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def frequencies(model: Checkpoint) -> Array:
    """Return the (head_dim / 2,) angles of one position, scaled as transformers documents it (short contexts)."""
    plain = model.rope_base ** -(np.arange(0, model.head_dim, 2) / model.head_dim)
    scaling = model.fields.get("rope_scaling") or model.fields.get("rope_parameters") or {}
    kind = scaling.get("rope_type", "default")
    if kind == "linear":
        return plain / scaling["factor"]
    if kind == "longrope":
        return plain / scaling["short_factor"]
    if kind == "yarn":
        return _yarn(model, plain, scaling)
    if kind != "llama3":
        return plain
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    context = scaling["original_max_position_embeddings"]
    found = []
    for frequency in plain:
        wavelength = 2 * np.pi / frequency
        smooth = (context / wavelength - low) / (high - low)
        if wavelength < context / high:
            found.append(frequency)
        elif wavelength > context / low:
            found.append(frequency / factor)
        else:
            found.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(found)


def _yarn(model: Checkpoint, plain: Array, scaling: dict[str, Any]) -> Array:
    """YaRN (arXiv:2309.00071): pairs that turn often stay, those that turn seldom are slowed."""
    context = scaling["original_max_position_embeddings"]

    def pair_of(n_turns: float) -> float:
        return model.head_dim * np.log(context / (n_turns * 2 * np.pi)) / (2 * np.log(model.rope_base))

    low = max(np.floor(pair_of(scaling.get("beta_fast", 32))), 0)
    high = min(np.ceil(pair_of(scaling.get("beta_slow", 1))), model.head_dim - 1)
    slowed = np.clip((np.arange(model.head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - slowed) + plain / scaling["factor"] * slowed


def magnitude(model: Checkpoint) -> float:
    """Return what queries and keys are multiplied with: transformers' attention_factor and its defaults."""
    scaling = model.fields.get("rope_scaling") or model.fields.get("rope_parameters") or {}
    kind, context = scaling.get("rope_type"), scaling.get("original_max_position_embeddings")
    if kind == "yarn" and "mscale" in scaling and scaling["mscale"] == scaling["mscale_all_dim"]:
        return 1.0
    if kind == "yarn":
        return float(scaling.get("attention_factor", 0.1 * np.log(scaling["factor"]) + 1))
    if kind == "longrope":
        factor = model.config["max_position_embeddings"] / context
        return float(np.sqrt(1 + np.log(factor) / np.log(context)))
    return 1.0
