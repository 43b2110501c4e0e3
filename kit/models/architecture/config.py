"""What a llama-family file says about its model: sizes, heads, experts, rotation, all checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kit.core.gguf import GGUFFile
from kit.errors import GGUFError, UnsupportedModel
from kit.models.architecture.keys import Keys
from kit.models.architecture.rope import Rope, read_rope

ARCHITECTURES = ("llama", "mistral3")
_LAST_POSITION = (1 << 31) - 1  # positions are 32 bits: a wider window leaves nothing out


@dataclass(frozen=True)
class LayerShape:
    """What may differ between blocks: query heads, heads of keys and values, hidden units."""

    n_head: int
    n_head_kv: int
    n_ff: int


@dataclass(frozen=True)
class Temperature:
    """mistral3's scaling of queries: times 1 + ``beta`` ln(1 + floor(position / ``n_ctx_orig``))."""

    beta: float
    n_ctx_orig: int


@dataclass(frozen=True)
class LlamaConfig:
    """The numbers a llama graph is built from; keys as llama.cpp's loader reads them.

    ``n_embd`` is the width of the residual stream, ``head_dim`` of one head, ``eps`` the epsilon of every RMS norm,
    ``n_expert`` how many feed-forward parts a block has to choose ``n_expert_used`` from (0: one, for all tokens),
    ``window`` how many tokens attention sees, the token itself included (None: all).
    """

    architecture: str
    name: str
    layers: tuple[LayerShape, ...]
    n_embd: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    rope: Rope
    n_expert: int = 0
    n_expert_used: int = 0
    window: int | None = None
    temperature: Temperature | None = None

    def layer(self, index: int) -> LayerShape:
        """Return the shape of block ``index``."""
        return self.layers[index]

    @property
    def n_layer(self) -> int:
        """How many blocks there are."""
        return len(self.layers)

    @property
    def n_head(self) -> int:
        """Query heads, the most of any block."""
        return max(layer.n_head for layer in self.layers)

    @property
    def n_head_kv(self) -> int:
        """Heads of keys and values, the most of any block."""
        return max(layer.n_head_kv for layer in self.layers)

    @property
    def n_ff(self) -> int:
        """Hidden units of a feed-forward part, the most of any block."""
        return max(layer.n_ff for layer in self.layers)

    @property
    def n_embd_kv(self) -> int:
        """Width of the keys, or values, of one token: all kv heads together, the most of any block."""
        return self.n_head_kv * self.head_dim

    @classmethod
    def from_gguf(cls, file: GGUFFile, *, sliding_window: bool = True) -> LlamaConfig:
        """Read and check the configuration of ``file``.

        Args:
            file: the model's file.
            sliding_window: False leaves out a window the file asks for, as llama.cpp does.

        Raises:
            UnsupportedModel: another architecture, or a feature kit does not have; named.
            GGUFError: a key that is missing, of another type, or out of range; named.
        """
        architecture = _architecture(file)
        keys = Keys(file)
        layers = _layers(keys, len(file.tensors))
        n_embd = keys.count("embedding_length")
        n_ctx_train = keys.count("context_length", largest=1 << 40)
        head_dim = _head_dim(keys, n_embd, layers)
        rope = read_rope(keys, head_dim, n_ctx_train)
        window = keys.count("attention.sliding_window", 0, least=0, largest=1 << 40)
        config = cls(
            architecture=architecture,
            name=str(file.metadata.get("general.name", file.path.stem)),
            layers=layers,
            n_embd=n_embd,
            head_dim=head_dim,
            n_vocab=file.tensors["token_embd.weight"].shape[0],
            n_ctx_train=n_ctx_train,
            eps=_epsilon(keys),
            rope=rope,
            window=window if sliding_window and 0 < window <= _LAST_POSITION else None,
            temperature=_temperature(keys, rope) if architecture == "mistral3" else None,
            **_experts(keys, layers),
        )
        if keys.count("embedding_length_out", n_embd) != n_embd:
            raise UnsupportedModel(f"{file.path}: {keys.prefix}embedding_length_out differs from embedding_length")
        keys.refuse_others()
        return config


def _architecture(file: GGUFFile) -> str:
    if file.architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file.path}: architecture {file.architecture!r} is not supported; kit runs {', '.join(ARCHITECTURES)}"
        )
    return file.architecture


def _epsilon(keys: Keys) -> float:
    eps = keys.number("attention.layer_norm_rms_epsilon")
    if not 0 < eps < 1:
        raise GGUFError(f"{keys.path}: {keys.prefix}attention.layer_norm_rms_epsilon is {eps}, out of range")
    return eps


def _layers(keys: Keys, n_tensors: int) -> tuple[LayerShape, ...]:
    n_layer = keys.count("block_count")
    if n_layer > n_tensors:
        raise GGUFError(f"{keys.path}: {keys.prefix}block_count is {n_layer}; the file has only {n_tensors} tensors")
    heads = keys.counts("attention.head_count", n_layer)
    kv_heads = keys.counts("attention.head_count_kv", n_layer, heads)
    hidden = keys.counts("feed_forward_length", n_layer)
    for i, (n_head, n_head_kv) in enumerate(zip(heads, kv_heads, strict=True)):
        if n_head % n_head_kv:
            raise GGUFError(
                f"{keys.path}: {keys.prefix}attention.head_count_kv is {n_head_kv} in block {i}, "
                f"which does not divide its {n_head} heads"
            )
    return tuple(LayerShape(*sizes) for sizes in zip(heads, kv_heads, hidden, strict=True))


def _head_dim(keys: Keys, n_embd: int, layers: tuple[LayerShape, ...]) -> int:
    usual = max(1, n_embd // layers[0].n_head)
    head_dim = keys.count("attention.key_length", usual)
    if keys.count("attention.value_length", usual) != head_dim:
        raise UnsupportedModel(f"{keys.path}: keys and values of different lengths (attention.value_length)")
    return head_dim


def _experts(keys: Keys, layers: tuple[LayerShape, ...]) -> dict[str, Any]:
    n_expert = keys.count("expert_count", 0, least=0, largest=1 << 16)
    n_used = keys.count("expert_used_count", 0, least=0, largest=1 << 16)
    if not min(1, n_expert) <= n_used <= n_expert:
        raise GGUFError(
            f"{keys.path}: {keys.prefix}expert_used_count is {n_used} of expert_count {n_expert}; "
            "expected from 1 to that number, or neither"
        )
    if n_expert and keys.has("expert_feed_forward_length"):
        stated = keys.counts("expert_feed_forward_length", len(layers))
        if stated != tuple(layer.n_ff for layer in layers):
            raise UnsupportedModel(
                f"{keys.path}: {keys.prefix}expert_feed_forward_length differs from feed_forward_length"
            )
    return {"n_expert": n_expert, "n_expert_used": n_used}


def _temperature(keys: Keys, rope: Rope) -> Temperature | None:
    beta = keys.number("attention.temperature_scale", 0.0, zero=True)
    length = keys.count("attention.temperature_length", rope.n_ctx_orig, least=0, largest=1 << 40)
    if beta and length not in (0, rope.n_ctx_orig):
        raise UnsupportedModel(
            f"{keys.path}: {keys.prefix}attention.temperature_length is {length}; "
            f"kit has only rope.scaling.original_context_length, {rope.n_ctx_orig}"
        )
    return Temperature(beta, rope.n_ctx_orig) if beta else None
