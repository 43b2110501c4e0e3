"""Mixtures of experts: several feed-forward parts in a block, a few of them for each token.

A router scores the experts; the best of them work on the token, and their results are added with weights in the
proportion of their scores (Jiang et al., "Mixtral of Experts", arXiv:2401.04088).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kit.core import ops
from kit.core.tensor import Tensor

if TYPE_CHECKING:
    from kit.models.architecture.llama import LlamaPass

SMALLEST_SUM = 2.0**-14  # float16's smallest normal number, llama.cpp's bound against division by 0


def mixture(llama: LlamaPass, at: str, n_ff: int, h: Tensor) -> Tensor:
    """Return the feed-forward share (tokens, n_embd) of block ``at``; its experts' values are stages."""
    n_tokens, width = h.shape
    n_used = llama.config.n_expert_used
    scores = ops.soft_max(ops.mul_mat(llama.weights[at + "ffn_gate_inp.weight"], h))  # (tokens, experts)
    shares = _shares(scores, n_used)
    llama.mark(at + "ffn.experts", shares)  # (tokens, experts): the weight of each, 0 where it is not used
    used = ops.argsort_top_k(
        ops.abs(shares), n_used
    )  # (tokens, experts used), heaviest first; after a patch, as patched
    rows = h.reshape((n_tokens, 1, width))
    if at + "ffn_gate_up_exps.weight" in llama.weights:
        gate, up = llama.split(_project(llama, at + "ffn_gate_up_exps", rows, used), [n_ff, n_ff])
    else:
        up = _project(llama, at + "ffn_up_exps", rows, used)
        gate = _project(llama, at + "ffn_gate_exps", rows, used)
    act = llama.activate(at, gate, up)  # (tokens, experts used, n_ff)
    out = ops.mul(_project(llama, at + "ffn_down_exps", act, used), _chosen(shares, used))
    return _added(out)  # (tokens, n_embd)


def _shares(scores: Tensor, n_used: int) -> Tensor:
    """Return the weight of every expert, (tokens, experts): the best ``n_used`` share 1, the others have 0."""
    n_tokens, n_expert = scores.shape
    best = ops.argsort_top_k(scores, n_used)
    chosen = _chosen(scores, best).reshape((n_tokens, n_used))
    chosen = ops.div(chosen, ops.clamp(ops.sum_rows(chosen), SMALLEST_SUM, math.inf))
    nothing = ops.fill(scores, 0.0).reshape((n_tokens, n_expert, 1))
    written = ops.set_rows(nothing, chosen.reshape((n_tokens, n_used, 1)), best)
    return written.reshape((n_tokens, n_expert))


def _chosen(values: Tensor, ids: Tensor) -> Tensor:
    """Return the ``values`` (tokens, experts) that ``ids`` (tokens, experts used) name: (tokens, experts used, 1)."""
    return ops.get_rows(values.reshape((*values.shape, 1)), ids)


def _project(llama: LlamaPass, name: str, rows: Tensor, used: Tensor) -> Tensor:
    """Return ``rows`` (tokens, experts used or 1, k) through each token's experts: (tokens, experts used, n)."""
    out = ops.mul_mat_id(llama.weights[name + ".weight"], rows, used)
    scale = llama.weights.get(name + ".scale")
    if scale is None:
        return out
    table = ops.repeat(scale.reshape((1, scale.size)), (used.shape[0], scale.size))
    return ops.mul(out, _chosen(table, used))


def _added(out: Tensor) -> Tensor:
    """Return the sum of ``out`` (tokens, experts used, n_embd) over the experts."""
    total = out[:, 0]
    for i in range(1, out.shape[1]):
        total = ops.add(total, out[:, i])
    return total if out.shape[1] > 1 else ops.cont(total)
