"""The llama forward pass in numpy, float64: what every stage of a pass should hold.

Written from the papers, not from kit's graph or ggml's source: RMSNorm (Zhang and Sennrich, arXiv:1910.07467),
rotary embedding of neighbouring pairs (Su et al., arXiv:2104.09864), grouped queries (Ainslie et al.,
arXiv:2305.13245), SwiGLU (Shazeer, arXiv:2002.05202), their arrangement (Touvron et al., arXiv:2302.13971).
It keeps no cache: a token's row depends on the tokens before it alone, so all rows are computed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .tiny import Tiny

Array = np.ndarray[Any, np.dtype[np.float64]]


def forward(model: Tiny, ids: list[int]) -> dict[str, Array]:
    """Return every stage by its name, shapes as kit documents them."""
    return _Pass(model, ids).stages


class _Pass:
    def __init__(self, model: Tiny, ids: list[int]) -> None:
        self.model = model
        self.weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
        self.n = len(ids)
        self.stages: dict[str, Array] = {}
        stream = self.weights["token_embd.weight"][ids]
        self.stages["embed"] = stream
        for layer in range(model.n_layer):
            stream = self.block(f"blk.{layer}.", stream)
        normed = self.stages["norm"] = self.normalize(stream, "output_norm.weight")
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        self.stages["logits"] = normed @ output.T

    def block(self, at: str, stream: Array) -> Array:
        seen = self.stages
        seen[at + "attn.norm"] = self.normalize(stream, at + "attn_norm.weight")
        seen[at + "attn.out"] = self.attention(at, seen[at + "attn.norm"])
        stream = seen[at + "resid_mid"] = stream + seen[at + "attn.out"]
        h = seen[at + "ffn.norm"] = self.normalize(stream, at + "ffn_norm.weight")
        gate, up = self.linear(h, at + "ffn_gate"), self.linear(h, at + "ffn_up")
        act = gate / (1 + np.exp(-gate)) * up
        out = self.linear(act, at + "ffn_down")
        seen |= {at + "ffn.gate": gate, at + "ffn.up": up, at + "ffn.act": act, at + "ffn.out": out}
        stream = seen[at + "resid"] = stream + out
        return stream

    def attention(self, at: str, h: Array) -> Array:
        model, n = self.model, self.n
        q = self.rotate(self.linear(h, at + "attn_q").reshape(n, model.n_head, model.head_dim))
        k = self.rotate(self.linear(h, at + "attn_k").reshape(n, model.n_head_kv, model.head_dim))
        v = self.linear(h, at + "attn_v").reshape(n, model.n_head_kv, model.head_dim)
        scores, heads = np.empty((model.n_head, n, n)), np.empty_like(q)
        for head in range(model.n_head):
            shared = head * model.n_head_kv // model.n_head  # which key head this query head looks at
            for token in range(n):
                logits = np.full(n, -np.inf)
                logits[: token + 1] = k[: token + 1, shared] @ q[token, head] / np.sqrt(model.head_dim)
                weights = np.exp(logits - logits.max())
                scores[head, token] = weights / weights.sum()
                heads[token, head] = scores[head, token] @ v[:, shared]
        at += "attn."
        self.stages |= {at + "q": q, at + "k": k, at + "v": v, at + "scores": scores, at + "heads": heads}
        return self.linear(heads.reshape(n, -1), at.removesuffix("attn.") + "attn_output")

    def rotate(self, x: Array) -> Array:
        """Turn each pair of neighbours by position * frequency, as multiplication of complex numbers."""
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        n_pairs = pairs.shape[-1]
        frequencies = self.model.rope_base ** (-np.arange(n_pairs) / n_pairs)
        frequencies = frequencies / self.weights.get("rope_freqs.weight", 1.0) * self.model.rope_scale
        turned = pairs * np.exp(1j * np.arange(self.n)[:, None, None] * frequencies)
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def normalize(self, x: Array, name: str) -> Array:
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + self.model.eps) * self.weights[name]
