"""The llama graph: one forward pass, every value a person may want on a line of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kit.core import ops
from kit.core.tensor import Tensor
from kit.models.attention import Kind, attend
from kit.models.cache import KVCache
from kit.models.config import LlamaConfig
from kit.models.stages import Stage


@dataclass(frozen=True)
class PassInputs:
    """What a pass reads beside weights and cache.

    ``tokens`` (n,) i32, ``positions`` (n,) i32, ``mask`` (n, n_kv), ``cells`` (n,) i64,
    ``value_cells`` (n * n_embd_kv,) i64 for a permuted cache, ``out_rows`` (n_out,) i32 where not every token's
    logits are wanted.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    cells: Tensor
    value_cells: Tensor | None
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
        n_seen: int | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.cache = cache
        self.inputs = inputs
        self.kind: Kind = kind
        self.n_kv = n_kv
        self.n_seen = n_seen
        self.n_tokens = inputs.tokens.shape[0]
        self.stages: list[Stage] = []

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
        output = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        logits = self.product(output.removesuffix(".weight"), x)
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
        h = self.feed_forward(at, h)
        self.mark(at + "ffn.out", h)  # (tokens, n_embd)
        x = ops.add(h, x)
        self.mark(at + "resid", x)  # (tokens, n_embd)
        return x

    def attention(self, layer: int, h: Tensor) -> Tensor:
        """Return attention's share (tokens, n_embd); keys and values of these tokens go into the cache."""
        config, at = self.config, f"blk.{layer}."
        q, k, v = self.queries_keys_values(at, h)
        q = self.rotate(q)
        self.mark(at + "attn.q", q)  # (tokens, heads, head_dim), rotated
        k = self.rotate(k)
        self.mark(at + "attn.k", k)  # (tokens, kv_heads, head_dim), rotated
        self.mark(at + "attn.v", v, (self.n_tokens, config.n_head_kv, config.head_dim))
        flat_k = k.reshape((self.n_tokens, config.n_embd_kv))
        keys, values = self.cache.write(layer, flat_k, v, self.inputs.cells, self.inputs.value_cells)
        attended = attend(self.kind, q, keys, values, self.inputs.mask, self.n_kv, config.n_head_kv)
        if attended.scores is not None:
            self.mark(at + "attn.scores", attended.scores, n_seen=self.n_seen)  # (heads, tokens, cells seen)
        self.mark(at + "attn.heads", attended.heads)  # (tokens, heads, head_dim)
        joined = attended.heads.reshape((self.n_tokens, config.n_head * config.head_dim))
        return self.project(at + "attn_output", joined)

    def queries_keys_values(self, at: str, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (tokens, heads, head_dim), (tokens, kv_heads, head_dim) and (tokens, kv_heads * head_dim)."""
        n, n_kv = self.config.n_head, self.config.n_head_kv
        if at + "attn_qkv.weight" not in self.weights:
            q, k = self.heads(self.project(at + "attn_q", h), n), self.heads(self.project(at + "attn_k", h), n_kv)
            return q, k, self.project(at + "attn_v", h)
        joined = self.heads(self.project(at + "attn_qkv", h), n + 2 * n_kv)
        v = ops.cont(joined[:, n + n_kv :])
        return joined[:, :n], joined[:, n : n + n_kv], v.reshape((self.n_tokens, self.config.n_embd_kv))

    def feed_forward(self, at: str, h: Tensor) -> Tensor:
        """Return the feed-forward share (tokens, n_embd)."""
        if at + "ffn_gate_up.weight" in self.weights:
            joined = self.project(at + "ffn_gate_up", h)
            n_ff = joined.shape[-1] // 2
            gate, up = joined[:, :n_ff], joined[:, n_ff:]
            act = ops.swiglu(joined)
        else:
            up = self.project(at + "ffn_up", h)
            gate = self.project(at + "ffn_gate", h)
            act = ops.swiglu_split(gate, up)
        self.mark(at + "ffn.gate", gate)  # (tokens, n_ff), before the nonlinearity
        self.mark(at + "ffn.up", up)  # (tokens, n_ff)
        self.mark(at + "ffn.act", act)  # (tokens, n_ff): silu(gate) * up
        return self.project(at + "ffn_down", act)

    def project(self, name: str, h: Tensor) -> Tensor:
        """Return ``h`` through the weight called ``name``, and its bias where the file has one."""
        out = self.product(name, h)
        bias = self.weights.get(name + ".bias")
        return out if bias is None else ops.add(out, bias)

    def product(self, name: str, h: Tensor) -> Tensor:
        """Return ``h`` through the matrix called ``name``; a split one (`copies.split_q4_0`) is the sum of two."""
        out = ops.mul_mat(self.weights[name + ".weight"], h)
        offsets = self.weights.get(name + ".offsets")
        if offsets is None:
            return out
        rows, columns = h.shape
        sums = ops.sum_rows(h.reshape((rows, columns // 32, 32))).reshape((rows, columns // 32))
        missing = offsets.shape[-1] - columns // 32
        return ops.add(out, ops.mul_mat(offsets, ops.pad(sums, (0, missing)) if missing else sums))

    def heads(self, h: Tensor, n: int) -> Tensor:
        """Return (tokens, n * head_dim) as (tokens, n, head_dim)."""
        return h.reshape((self.n_tokens, n, self.config.head_dim))

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Return the RMS norm of ``x`` times the weight called ``name``."""
        return ops.mul(ops.rms_norm(x, self.config.eps), self.weights[name])

    def rotate(self, h: Tensor) -> Tensor:
        """Return ``h`` rotated by the tokens' positions, in neighbouring pairs."""
        config = self.config
        return ops.rope_ext(
            h,
            self.inputs.positions,
            self.weights.get("rope_freqs.weight"),
            n_dims=config.n_rot,
            n_ctx_orig=config.n_ctx_train,
            freq_base=config.rope_base,
            freq_scale=config.rope_scale,
        )

    def mark(self, name: str, tensor: Tensor, shape: tuple[int, ...] | None = None, n_seen: int | None = None) -> None:
        """Make ``tensor`` the stage ``name``."""
        tensor.name = name
        self.stages.append(Stage(name, tensor, shape or tensor.shape, n_seen))
