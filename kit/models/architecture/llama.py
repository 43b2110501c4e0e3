"""The llama graph: one forward pass, every value a person may want on a line of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kit.core import ops
from kit.core.tensor import Tensor
from kit.models.architecture.attention import Kind, attend
from kit.models.architecture.config import LayerShape, LlamaConfig
from kit.models.architecture.experts import mixture
from kit.models.architecture.stages import Stage
from kit.models.cache.cache import KVCache


@dataclass(frozen=True)
class PassInputs:
    """What a pass reads beside weights and cache.

    ``tokens`` (n,) i32, ``positions`` (n,) i32, ``mask`` (n, n_kv), ``cells`` (n,) i64,
    ``out_rows`` (n_out,) i32 where not every token's logits are wanted.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    cells: Tensor
    out_rows: Tensor | None


class LlamaPass:
    """Builds the nodes of one pass and collects its stages; computes nothing."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Tensor],
        cache: KVCache,
        inputs: PassInputs,
        kind: Kind,
        n_kv: int,
    ) -> None:
        self.config = config
        self.weights = weights
        self.cache = cache
        self.inputs = inputs
        self.kind: Kind = kind
        self.n_kv = n_kv
        self.n_tokens = inputs.tokens.shape[0]
        self.stages: list[Stage] = []
        self.rope_factors = config.rope.factors(weights, cache.n_ctx)
        self.temperatures = self.temperature()

    def build(self) -> Tensor:
        """Return the logits (n_out, n_vocab)."""
        config = self.config
        x = ops.get_rows(self.weights["token_embd.weight"], self.inputs.tokens)
        self.mark("embed", x)  # (tokens, n_embd)
        for layer in range(config.n_layer):
            x = self.block(layer, x)
        if self.inputs.out_rows is not None:
            x = ops.get_rows(x, self.inputs.out_rows)
        x = self.norm(x, "output_norm.weight")
        self.mark("norm", x)  # (n_out, n_embd)
        logits = output_of(self.weights, x)
        self.mark("logits", logits)  # (n_out, n_vocab)
        return logits

    def block(self, layer: int, x: Tensor) -> Tensor:
        """Return the residual stream (tokens, n_embd) after block ``layer``."""
        at = f"blk.{layer}."
        h = self.norm(x, at + "attn_norm.weight")
        self.mark(at + "attn.norm", h)  # (tokens, n_embd)
        h = self.attention(layer, h)
        self.mark(at + "attn.out", h)  # (tokens, n_embd)
        x = ops.add(h, x)
        self.mark(at + "resid_mid", x)  # (tokens, n_embd)
        h = self.norm(x, at + "ffn_norm.weight")
        self.mark(at + "ffn.norm", h)  # (tokens, n_embd)
        h = self.feed_forward(layer, h)
        self.mark(at + "ffn.out", h)  # (tokens, n_embd)
        x = ops.add(h, x)
        self.mark(at + "resid", x)  # (tokens, n_embd)
        return x

    def attention(self, layer: int, h: Tensor) -> Tensor:
        """Return attention's share (tokens, n_embd); keys and values of these tokens go into the cache."""
        at, shape, head_dim = f"blk.{layer}.", self.config.layer(layer), self.config.head_dim
        q, k, v = self.queries_keys_values(at, h, shape)
        q = self.rotate(q)
        if self.temperatures is not None:
            q = ops.mul(q, self.temperatures)
        self.mark(at + "attn.q", q)  # (tokens, heads, head_dim), as it meets the keys
        k = self.rotate(k)
        self.mark(at + "attn.k", k)  # (tokens, kv_heads, head_dim), rotated
        self.mark(at + "attn.v", v, (self.n_tokens, shape.n_head_kv, head_dim))
        flat_k = k.reshape((self.n_tokens, shape.n_head_kv * head_dim))
        keys, values = self.cache.write(layer, flat_k, v, self.inputs.cells)
        attended = attend(self.kind, q, keys, values, self.inputs.mask, self.n_kv, shape.n_head_kv)
        if attended.scores is not None:
            self.mark(at + "attn.scores", attended.scores, per_cell=True)  # (heads, tokens, cells)
        self.mark(at + "attn.heads", attended.heads)  # (tokens, heads, head_dim)
        joined = attended.heads.reshape((self.n_tokens, shape.n_head * head_dim))
        return self.project(at + "attn_output", joined)

    def queries_keys_values(self, at: str, h: Tensor, shape: LayerShape) -> tuple[Tensor, Tensor, Tensor]:
        """Return (tokens, heads, head_dim), (tokens, kv_heads, head_dim), (tokens, kv_heads * head_dim)."""
        widths = [heads * self.config.head_dim for heads in (shape.n_head, shape.n_head_kv, shape.n_head_kv)]
        names = [at + "attn_q", at + "attn_k", at + "attn_v"]
        if at + "attn_qkv.weight" in self.weights:
            q, k, v = self.split(self.project(at + "attn_qkv", h), widths)
            if at + "attn_qkv.bias" not in self.weights:
                q, k, v = (self.biased(name, part) for name, part in zip(names, (q, k, v), strict=True))
        else:
            q, k, v = (self.project(name, h) for name in names)
        return self.heads(q, shape.n_head), self.heads(k, shape.n_head_kv), v

    def feed_forward(self, layer: int, h: Tensor) -> Tensor:
        """Return the feed-forward share (tokens, n_embd)."""
        at, n_ff = f"blk.{layer}.", self.config.layer(layer).n_ff
        if self.config.n_expert:
            return mixture(self, at, n_ff, h)
        if at + "ffn_gate_up.weight" in self.weights:
            gate, up = self.split(self.project(at + "ffn_gate_up", h), [n_ff, n_ff])
        else:
            up = self.project(at + "ffn_up", h)
            gate = self.project(at + "ffn_gate", h)
        return self.project(at + "ffn_down", self.activate(at, gate, up))

    def activate(self, at: str, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up, each a stage: (tokens, n_ff), or (tokens, experts used, n_ff)."""
        self.mark(at + "ffn.gate", gate)  # before the nonlinearity
        self.mark(at + "ffn.up", up)
        act = ops.swiglu_split(gate, up)
        self.mark(at + "ffn.act", act)
        return act

    def project(self, name: str, h: Tensor) -> Tensor:
        """Return ``h`` through the weight called ``name``, its factor and its bias where the file has them."""
        return self.biased(name, product(self.weights, name, h))

    def biased(self, name: str, h: Tensor) -> Tensor:
        """Return ``h`` plus the bias called ``name``, where the file has it."""
        bias = self.weights.get(name + ".bias")
        return h if bias is None else ops.add(h, bias)

    def split(self, joined: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Return views of the last axis of ``joined``, one after another, as wide as ``widths`` says."""
        ends = list(accumulate(widths))
        return [joined[..., end - width : end] for width, end in zip(widths, ends, strict=True)]

    def heads(self, h: Tensor, n: int) -> Tensor:
        """Return (tokens, n * head_dim) as (tokens, n, head_dim), also where the rows of ``h`` have gaps."""
        dim = self.config.head_dim
        if h.contiguous:
            return h.reshape((self.n_tokens, n, dim))
        return ops.view(h, (self.n_tokens, n, dim), strides=(h.nb[1], dim * h.nb[0]))

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Return the RMS norm of ``x`` times the weight called ``name``."""
        return ops.mul(ops.rms_norm(x, self.config.eps), self.weights[name])

    def rotate(self, h: Tensor) -> Tensor:
        """Return ``h`` rotated by the tokens' positions."""
        return self.config.rope.rotate(h, self.inputs.positions, self.rope_factors)

    def temperature(self) -> Tensor | None:
        """Return mistral3's factor for each token's queries, (tokens, 1, 1), or None."""
        temperature = self.config.temperature
        if temperature is None:
            return None
        length = temperature.n_ctx_orig
        positions = ops.cast(self.inputs.positions, "f32")
        stretches = ops.floor(ops.scale(positions, 1 / length, 0.5 / length))  # half a token in, where f32 is sure
        factors = ops.scale(ops.log(ops.scale(stretches, 1.0, 1.0)), temperature.beta, 1.0)
        return factors.reshape((self.n_tokens, 1, 1))

    def mark(self, name: str, tensor: Tensor, shape: tuple[int, ...] | None = None, *, per_cell: bool = False) -> None:
        """Make ``tensor`` the stage ``name``; ``per_cell`` where its last axis counts cells of the cache."""
        tensor.name = name
        self.stages.append(Stage(name, tensor, shape or tensor.shape, per_cell))


def product(weights: Mapping[str, Tensor], name: str, h: Tensor) -> Tensor:
    """Return ``h`` (rows, columns) through the matrix called ``name``, times its factor where it has one.

    A matrix that was split is the sum of two; `kit.core.copies.split_q4_0` says what splits one, and why.
    """
    out = ops.mul_mat(weights[name + ".weight"], h)
    offsets = weights.get(name + ".offsets")
    if offsets is not None:
        rows, columns = h.shape
        sums = ops.sum_rows(h.reshape((rows, columns // 32, 32))).reshape((rows, columns // 32))
        missing = offsets.shape[-1] - columns // 32
        out = ops.add(out, ops.mul_mat(offsets, ops.pad(sums, (0, missing)) if missing else sums))
    scale = weights.get(name + ".scale")
    return out if scale is None else ops.mul(out, scale)


def output_of(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the logits (rows, n_vocab) of normed ``x``; without an output matrix the embedding is one."""
    return product(weights, "output" if "output.weight" in weights else "token_embd", x)
