"""The llama forward pass in numpy, float64: what every stage of a pass should hold.

Written from the papers, not from kit's graph or ggml's source: RMSNorm (Zhang and Sennrich, arXiv:1910.07467),
rotary embedding of neighbouring pairs (Su et al., arXiv:2104.09864), grouped queries (Ainslie et al.,
arXiv:2305.13245), SwiGLU (Shazeer, arXiv:2002.05202), their arrangement (Touvron et al., arXiv:2302.13971), a
sliding window (Jiang et al., arXiv:2310.06825), experts (Jiang et al., arXiv:2401.04088), stretched rotations (Peng et
al., arXiv:2309.00071, with the ramp over dims of its authors' code; Ding et al., arXiv:2402.13753).
It keeps no cache: a token's row depends on the tokens before it alone, so all rows are computed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .tiny import Tiny

Array = np.ndarray[Any, np.dtype[np.float64]]


def forward(model: Tiny, ids: list[int], n_ctx: int = 64) -> dict[str, Array]:
    """Return every stage by its name, shapes as kit documents them, in a context of ``n_ctx`` tokens."""
    return _Pass(model, ids, n_ctx).stages


class _Pass:
    def __init__(self, model: Tiny, ids: list[int], n_ctx: int) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self.weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
        self.n = len(ids)
        self.stages: dict[str, Array] = {}
        stream = self.weights["token_embd.weight"][ids]
        self.stages["embed"] = stream
        for layer in range(model.n_layer):
            stream = self.block(layer, stream)
        normed = self.stages["norm"] = self.normalize(stream, "output_norm.weight")
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        self.stages["logits"] = normed @ output.T

    def block(self, layer: int, stream: Array) -> Array:
        seen, at = self.stages, f"blk.{layer}."
        seen[at + "attn.norm"] = self.normalize(stream, at + "attn_norm.weight")
        seen[at + "attn.out"] = self.attention(layer, seen[at + "attn.norm"])
        stream = seen[at + "resid_mid"] = stream + seen[at + "attn.out"]
        h = seen[at + "ffn.norm"] = self.normalize(stream, at + "ffn_norm.weight")
        out = seen[at + "ffn.out"] = self.mixture(at, h) if self.model.n_expert else self.feed_forward(at, h)
        stream = seen[at + "resid"] = stream + out
        return stream

    def feed_forward(self, at: str, h: Array) -> Array:
        gate, up = self.linear(h, at + "ffn_gate"), self.linear(h, at + "ffn_up")
        act = silu(gate) * up
        self.stages |= {at + "ffn.gate": gate, at + "ffn.up": up, at + "ffn.act": act}
        return self.linear(act, at + "ffn_down")

    def mixture(self, at: str, h: Array) -> Array:
        """Token by token, expert by expert, the heaviest first."""
        model, weights = self.model, self.weights
        scores = np.exp(h @ weights[at + "ffn_gate_inp.weight"].T)
        shares = np.zeros_like(scores)
        gates: list[list[Array]] = [[] for _ in range(self.n)]
        ups: list[list[Array]] = [[] for _ in range(self.n)]
        out = np.zeros_like(h)
        for token in range(self.n):
            best = np.argsort(-scores[token])[: model.n_expert_used]
            shares[token, best] = scores[token, best] / scores[token, best].sum()
            for expert in best:
                gates[token].append(weights[at + "ffn_gate_exps.weight"][expert] @ h[token])
                ups[token].append(weights[at + "ffn_up_exps.weight"][expert] @ h[token])
                act = silu(gates[token][-1]) * ups[token][-1]
                out[token] += shares[token, expert] * (weights[at + "ffn_down_exps.weight"][expert] @ act)
        gate, up = np.array(gates), np.array(ups)
        self.stages |= {at + "ffn.experts": shares, at + "ffn.gate": gate, at + "ffn.up": up}
        self.stages[at + "ffn.act"] = silu(gate) * up
        return out

    def attention(self, layer: int, h: Array) -> Array:
        model, n, at = self.model, self.n, f"blk.{layer}."
        n_head, n_head_kv, _ = model.sizes(layer)
        q = self.rotate(self.linear(h, at + "attn_q").reshape(n, n_head, model.head_dim))
        q *= 1 + model.temperature * np.log(1 + np.arange(n) // model.n_ctx_orig)[:, None, None]
        k = self.rotate(self.linear(h, at + "attn_k").reshape(n, n_head_kv, model.head_dim))
        v = self.linear(h, at + "attn_v").reshape(n, n_head_kv, model.head_dim)
        scores, heads = np.empty((n_head, n, n)), np.empty_like(q)
        for head in range(n_head):
            shared = head * n_head_kv // n_head  # which key head this query head looks at
            for token in range(n):
                first = max(0, token + 1 - model.window) if model.window else 0
                logits = np.full(n, -np.inf)
                logits[first : token + 1] = k[first : token + 1, shared] @ q[token, head] / np.sqrt(model.head_dim)
                weights = np.exp(logits - logits.max())
                scores[head, token] = weights / weights.sum()
                heads[token, head] = scores[head, token] @ v[:, shared]
        at += "attn."
        self.stages |= {at + "q": q, at + "k": k, at + "v": v, at + "scores": scores, at + "heads": heads}
        return self.linear(heads.reshape(n, -1), at.removesuffix("attn.") + "attn_output")

    def rotate(self, x: Array) -> Array:
        """Turn each pair of neighbours by position * frequency, as multiplication of complex numbers."""
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        frequencies, magnitude = self.rotation(pairs.shape[-1])
        turned = magnitude * pairs * np.exp(1j * np.arange(self.n)[:, None, None] * frequencies)
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def rotation(self, n_pairs: int) -> tuple[Array, float]:
        """Angle of each pair per position, and what vectors grow by."""
        model = self.model
        frequencies = model.rope_base ** (-np.arange(n_pairs) / n_pairs)
        if model.rope_scaling == "longrope":
            table = "long" if self.n_ctx > model.n_ctx_orig else "short"
            return frequencies / self.weights[f"rope_factors_{table}.weight"], model.rope_magnitude
        frequencies = frequencies / self.weights.get("rope_freqs.weight", 1.0)
        if model.rope_scaling == "linear":
            frequencies = frequencies / model.rope_factor
        if model.rope_scaling != "yarn":
            return frequencies, model.rope_magnitude
        first, last = (  # the pair that turns so often within the context of training
            n_pairs * np.log(model.n_ctx_orig / (2 * np.pi * beta)) / np.log(model.rope_base)
            for beta in model.rope_betas
        )
        low, high = max(np.floor(first), 0), min(np.ceil(last), 2 * n_pairs - 1)
        stretched = np.clip((np.arange(n_pairs) - low) / max(high - low, 0.001), 0, 1)
        growth = 1 + 0.1 * np.log(model.rope_factor)
        shrink = 1 + 0.1 * model.rope_log_multiplier * np.log(model.rope_factor)
        mixed = frequencies * (1 - stretched) + frequencies / model.rope_factor * stretched
        return mixed, model.rope_magnitude * growth / shrink

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def normalize(self, x: Array, name: str) -> Array:
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + self.model.eps) * self.weights[name]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))
