"""Reading a model's metadata keys: checked, named in every error, and none passed over in silence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kit.checks import is_whole
from kit.core.gguf import GGUFFile
from kit.errors import GGUFError, UnsupportedModel

LARGEST = 1 << 24

#: Keys that say nothing about the results of a llama graph.
HARMLESS = frozenset(
    {
        "vocab_size",  # the embedding's rows count
        "tensor_data_layout",
        "rope.scaling.finetuned",
        "pooling_type",
        "attention.layer_norm_epsilon",  # of models with another norm
    }
)

#: Keys of features kit's graph does not have, with the values that mean "not used".
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.scale": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_feed_forward_length": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "hidden_activation": ("silu",),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "moe_every_n_layers": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_ext_factor": (1,),
    "router_logit_softcapping": (0,),
    "use_parallel_residual": (False,),
}


class Keys:
    """The keys under a file's architecture. Every key read is noted, so that `refuse_others` can name the rest."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self.prefix = file.architecture + "."
        self._metadata: Mapping[str, Any] = file.metadata
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the file has ``key``."""
        return self.prefix + key in self._metadata

    def count(self, key: str, default: int | None = None, *, least: int = 1, largest: int = LARGEST) -> int:
        """Return a whole number from ``least`` to ``largest``; an array must hold one value throughout."""
        value = self._value(key, default)
        if isinstance(value, np.ndarray):
            if value.size == 0 or not np.all(value == value.flat[0]):
                raise UnsupportedModel(f"{self._name(key)} differs between layers, which kit does not have")
            value = value.flat[0].item()
        return self._whole(key, value, least, largest)

    def counts(self, key: str, n_layer: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return a positive whole number for each of ``n_layer`` blocks, from an array or one number for all."""
        value = self._value(key, default)
        if isinstance(value, tuple):
            return value
        if not isinstance(value, np.ndarray):
            return (self._whole(key, value, 1, LARGEST),) * n_layer
        if value.shape != (n_layer,):
            raise GGUFError(f"{self._name(key)} has {value.size} values; expected one for each of {n_layer} blocks")
        return tuple(self._whole(f"{key}[{i}]", item, 1, LARGEST) for i, item in enumerate(value.tolist()))

    def number(self, key: str, default: float | None = None, *, zero: bool = False) -> float:
        """Return a finite number; 0 only where ``zero`` allows it."""
        value = self._value(key, default)
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not finite or (value == 0 and not zero):
            allowed = "a finite number" if zero else "a finite number other than 0"
            raise GGUFError(f"{self._name(key)} is {value!r}; expected {allowed}")
        return float(value)

    def choice(self, key: str, default: str, known: tuple[str, ...]) -> str:
        """Return one of the words ``known``."""
        value = self._value(key, default)
        if isinstance(value, str) and value in known:
            return value
        raise UnsupportedModel(f"{self._name(key)} is {value!r}, which kit does not have; it knows {', '.join(known)}")

    def refuse_others(self) -> None:
        """Raise UnsupportedModel for a key nobody read, unless it is known to change nothing."""
        for name in self._metadata:
            key = name.removeprefix(self.prefix)
            if key == name or key in self._read or key in HARMLESS:
                continue
            value = self._metadata[name]
            if key not in NEUTRAL:
                raise UnsupportedModel(
                    f"{self._name(key)} is no key kit knows for this architecture, and it may change the results"
                )
            if not isinstance(value, (bool, int, float, str)) or value not in NEUTRAL[key]:
                harmless = " or ".join(map(repr, NEUTRAL[key]))
                raise UnsupportedModel(
                    f"{self._name(key)} is {value!r}: a feature kit does not have; expected {harmless}"
                )

    def _value(self, key: str, default: Any) -> Any:
        self._read.add(key)
        if default is None:
            return self._metadata[self.prefix + key]
        value = self._metadata.get(self.prefix + key)
        return default if value is None else value

    def _whole(self, key: str, value: Any, least: int, largest: int) -> int:
        if not is_whole(value, least, largest):
            raise GGUFError(f"{self._name(key)} is {value!r}; expected a whole number from {least} to {largest}")
        return int(value)

    def _name(self, key: str) -> str:
        return f"{self.path}: {self.prefix}{key}"
