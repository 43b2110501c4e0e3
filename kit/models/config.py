"""What a llama-family file says about its model: sizes, heads, rotation, all checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kit.core.gguf import GGUFFile
from kit.errors import GGUFError, UnsupportedModel

ARCHITECTURES = ("llama",)
_LARGEST = 1 << 24


@dataclass(frozen=True)
class LayerShape:
    """What may differ between blocks: query heads, heads of keys and values, hidden units."""

    n_head: int
    n_head_kv: int
    n_ff: int


@dataclass(frozen=True)
class LlamaConfig:
    """The numbers a llama graph is built from; keys as llama.cpp's loader reads them.

    ``n_embd`` is the width of the residual stream, ``head_dim`` of one head, ``n_rot`` how many dims of a head
    rotate, ``eps`` the epsilon of every RMS norm, ``window`` how many tokens back attention sees (None: all).
    """

    architecture: str
    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    rope_base: float
    rope_scale: float
    window: int | None = None

    def layer(self, index: int) -> LayerShape:
        """Return the shape of block ``index``."""
        return LayerShape(self.n_head, self.n_head_kv, self.n_ff)

    @property
    def n_embd_kv(self) -> int:
        """Width of the keys, or values, of one token: all kv heads together."""
        return self.n_head_kv * self.head_dim

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> LlamaConfig:
        """Read and check the configuration of ``file``.

        Raises:
            UnsupportedModel: another architecture, or a feature kit does not have; named.
            GGUFError: a key that is missing, of another type, or out of range; named.
        """
        reader = _Reader(file)
        architecture = file.architecture
        if architecture not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{file.path}: architecture {architecture!r} is not supported; kit runs {', '.join(ARCHITECTURES)}"
            )
        reader.refuse_unsupported()
        n_embd, n_head = reader.count("embedding_length"), reader.count("attention.head_count")
        head_dim = reader.count("attention.key_length", n_embd // n_head)
        if reader.count("attention.value_length", head_dim) != head_dim:
            raise UnsupportedModel(f"{file.path}: keys and values of different lengths (attention.value_length)")
        config = cls(
            architecture=architecture,
            name=str(file.metadata.get("general.name", file.path.stem)),
            n_layer=reader.count("block_count"),
            n_embd=n_embd,
            n_ff=reader.count("feed_forward_length"),
            n_head=n_head,
            n_head_kv=reader.count("attention.head_count_kv", n_head),
            head_dim=head_dim,
            n_rot=reader.count("rope.dimension_count", head_dim),
            n_vocab=_n_vocab(file),
            n_ctx_train=reader.count("context_length", largest=1 << 40),
            eps=reader.number("attention.layer_norm_rms_epsilon"),
            rope_base=reader.number("rope.freq_base", 10000.0),
            rope_scale=1.0 / reader.number("rope.scaling.factor", reader.number("rope.scale_linear", 1.0)),
        )
        config.check(file)
        return config

    def check(self, file: GGUFFile) -> None:
        """Raise GGUFError where the numbers contradict each other."""
        prefix = f"{file.path}: {self.architecture}."
        if self.n_head % self.n_head_kv:
            raise GGUFError(
                f"{prefix}attention.head_count_kv is {self.n_head_kv}, which does not divide the {self.n_head} heads"
            )
        if self.n_rot % 2 or self.n_rot > self.head_dim:
            raise GGUFError(
                f"{prefix}rope.dimension_count is {self.n_rot}; expected an even number up to {self.head_dim}"
            )
        if not (0 < self.eps < 1 and self.rope_base > 0 and self.rope_scale > 0):
            raise GGUFError(
                f"{prefix}epsilon {self.eps}, rope base {self.rope_base} or scale {self.rope_scale} is out of range"
            )


class _Reader:
    """Reads keys under the architecture's prefix; errors name path and key."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self.metadata: Mapping[str, Any] = file.metadata
        self.prefix = file.architecture + "."

    def count(self, key: str, default: int | None = None, largest: int = _LARGEST) -> int:
        """Return a positive integer; a per-layer array must hold one value throughout."""
        value = self._value(key, default)
        if isinstance(value, np.ndarray):
            if value.size == 0 or not np.all(value == value.flat[0]):
                raise UnsupportedModel(
                    f"{self.path}: {self.prefix}{key} differs between layers, which kit does not have yet"
                )
            value = value.flat[0].item()
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise GGUFError(
                f"{self.path}: {self.prefix}{key} is {value!r}; expected a whole number from 1 to {largest}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value == 0:
            raise GGUFError(f"{self.path}: {self.prefix}{key} is {value!r}; expected a finite number other than 0")
        return float(value)

    def _value(self, key: str, default: Any) -> Any:
        if default is None:
            return self.metadata[self.prefix + key]
        value = self.metadata.get(self.prefix + key)
        return default if value is None else value

    def refuse_unsupported(self) -> None:
        """Name what kit would otherwise compute wrongly."""
        experts = self.metadata.get(self.prefix + "expert_count", 0)
        if not isinstance(experts, int) or experts:
            raise UnsupportedModel(f"{self.path}: {self.prefix}expert_count: mixtures of experts are not supported yet")
        scaling = self.metadata.get(self.prefix + "rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise UnsupportedModel(f"{self.path}: {self.prefix}rope.scaling.type {scaling!r} is not supported yet")


def _n_vocab(file: GGUFFile) -> int:
    embedding = file.tensors["token_embd.weight"]
    return embedding.shape[0]
