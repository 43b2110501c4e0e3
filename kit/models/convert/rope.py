"""Rotary embedding: from a checkpoint's settings to GGUF's keys and tables of frequency factors.

Formulas from the papers and transformers' documentation of ``rope_scaling``: linear (positions divided by a factor),
llama3 (each frequency divided by a factor that grows from 1 to ``factor`` as its wavelength passes from the original
context's share of ``high_freq_factor`` to that of ``low_freq_factor``), yarn (Peng et al., arXiv:2309.00071),
longrope (Ding et al., arXiv:2402.13753: a factor per frequency, one table for short and one for long contexts).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.errors import ConversionError, UnsupportedModel

LARGEST_NUMBER = 1e30  # well within the 32-bit floats GGUF has
_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "longrope": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
    ),
}
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True)
class Rope:
    """GGUF keys (without the architecture) and tensors by name, float32 (head_dim / 2,) each."""

    metadata: dict[str, Any]
    tensors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)


def read_rope(
    path: Path,
    config: dict[str, Any],
    default_base: float,
    head_dim: int,
    n_ctx: int,
    *,
    scales_queries: bool = False,
) -> Rope:
    """Return the rotation a config asks for; ``n_ctx`` is the context it was trained for.

    ``scales_queries``: its settings may also hold ``llama_4_scaling_beta``, by which Ministral 3 scales queries of
    positions beyond the original context (1 + beta ln(1 + floor(position / original context))).

    Raises UnsupportedModel for a kind or setting GGUF has no place for, ConversionError for a bad value; named.
    """
    field_name = "rope_scaling" if config.get("rope_parameters") in (None, {}) else "rope_parameters"
    settings = config.get(field_name)
    settings = {} if settings is None else settings
    if not isinstance(settings, dict):
        raise ConversionError(f"{path}: {field_name} is {settings!r}; expected a table")
    beta = settings.get("llama_4_scaling_beta") if scales_queries else None
    settings = {key: value for key, value in settings.items() if beta is None or key != "llama_4_scaling_beta"}
    kind = settings.get("rope_type", settings.get("type", "default"))
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise UnsupportedModel(f"{path}: rope_scaling of type {kind!r}; kit converts {', '.join(_FIELDS)}")
    for name, value in settings.items():
        if name not in _FIELDS[kind] + _ALWAYS and value is not None:
            raise UnsupportedModel(f"{path}: rope_scaling: {name!r} ({value!r}) is unknown for {kind!r}")
    reader = _Settings(path, settings)
    if reader.number("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel(f"{path}: rope_scaling: partial_rotary_factor is {settings['partial_rotary_factor']!r}")
    base = _Settings(path, config).number("rope_theta", default_base)
    base = reader.number("rope_theta", base)
    rope = Rope({"rope.freq_base": base})
    original = config.get("original_max_position_embeddings") or n_ctx
    if kind == "llama3":  # nothing in the paper or the format says what it would be
        original = config.get("original_max_position_embeddings")
    n_original = int(reader.number("original_max_position_embeddings", original))
    if not 2 <= n_original < 1 << 32:
        raise ConversionError(f"{path}: original_max_position_embeddings is {n_original}; expected at least 2")
    if kind == "linear":
        rope.metadata.update({"rope.scaling.type": "linear", "rope.scaling.factor": reader.number("factor")})
    elif kind == "llama3":
        rope.tensors["rope_freqs.weight"] = _llama3(reader, base, head_dim, n_original)
    elif kind == "yarn":
        rope.metadata.update(_yarn(reader, n_original))
    elif kind == "longrope":
        rope.metadata.update(_longrope(reader, n_original, n_ctx))
        for name in ("long", "short"):
            rope.tensors[f"rope_factors_{name}.weight"] = reader.numbers(f"{name}_factor", head_dim // 2)
    if beta is not None:
        rope.metadata["attention.temperature_scale"] = _Settings(path, {"beta": beta}).number("beta")
        rope.metadata.setdefault("rope.scaling.original_context_length", n_original)
    return rope


def _llama3(reader: _Settings, base: float, head_dim: int, n_original: int) -> npt.NDArray[np.float32]:
    factor, low, high = (reader.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ConversionError(f"{reader.path}: rope_scaling: low_freq_factor {low} is not below {high}")
    wavelength = 2 * np.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    turns = n_original / wavelength
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _yarn(reader: _Settings, n_original: int) -> dict[str, Any]:
    if reader.values.get("truncate") is False:
        raise UnsupportedModel(f"{reader.path}: rope_scaling: yarn with truncate false, which ggml does not have")
    factor = reader.number("factor")
    found = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": n_original,
        "rope.scaling.yarn_beta_fast": reader.number("beta_fast", 32.0),
        "rope.scaling.yarn_beta_slow": reader.number("beta_slow", 1.0),
    }
    usual = _magnitude(factor, 1.0)
    wanted = usual
    if reader.values.get("mscale") and reader.values.get("mscale_all_dim"):
        wanted = _magnitude(factor, reader.number("mscale")) / _magnitude(factor, reader.number("mscale_all_dim"))
    wanted = reader.number("attention_factor", wanted)
    if not math.isclose(wanted, usual, rel_tol=1e-6):
        found["rope.scaling.attn_factor"] = wanted / usual  # loaders multiply yarn's usual magnitude by it
    return found


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope(reader: _Settings, n_original: int, n_ctx: int) -> dict[str, Any]:
    for name in ("short_mscale", "long_mscale"):
        if reader.values.get(name) not in (None, 1):
            raise UnsupportedModel(f"{reader.path}: rope_scaling: {name} is {reader.values[name]!r}")
    factor = reader.number("factor", n_ctx / n_original)
    usual = math.sqrt(1 + math.log(factor) / math.log(n_original)) if factor > 1 else 1.0
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": n_original,
        "rope.scaling.attn_factor": reader.number("attention_factor", usual),
    }


@dataclass(frozen=True)
class _Settings:
    path: Path
    values: dict[str, Any]

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < LARGEST_NUMBER:
            raise ConversionError(f"{self.path}: {name} of the rotation is {value!r}; expected a positive number")
        return float(value)

    def numbers(self, name: str, n: int) -> npt.NDArray[np.float32]:
        values = self.values.get(name)
        if not isinstance(values, list) or len(values) != n:
            raise ConversionError(f"{self.path}: rope_scaling: {name} has to be a list of {n} numbers")
        return np.array([_Settings(self.path, {name: value}).number(name) for value in values], np.float32)
