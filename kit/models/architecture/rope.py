"""Rotary positions: which angles a file asks for, and their operation.

The kinds of scaling as llama.cpp reads them: ``linear`` divides every position (the default, by a factor of 1),
``yarn`` divides the slow pairs and leaves the fast ones (Peng et al., arXiv:2309.00071), ``longrope`` divides each
pair by a factor of its own, from one of two tables (Ding et al., arXiv:2402.13753).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kit.core import ops
from kit.core.tensor import Tensor
from kit.errors import GGUFError, UnsupportedModel
from kit.models.architecture.keys import Keys

SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """How queries and keys are rotated; the fields are arguments of ggml's ``rope_ext``.

    ``n_dims`` is how many dims of a head rotate, ``base`` and ``scale`` the frequencies' base and factor,
    ``ext_factor`` how much of YaRN's extrapolation is used, ``magnitude`` what rotated vectors are multiplied by
    in all, ``n_ctx_orig`` the context before it was stretched.
    """

    n_dims: int
    base: float
    scale: float
    scaling: str
    n_ctx_orig: int
    ext_factor: float = 0.0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def factors(self, weights: Mapping[str, Tensor], n_ctx: int) -> Tensor | None:
        """Return the divisors of the frequencies, (n_dims / 2,), for a cache of ``n_ctx`` tokens; None: all 1."""
        if self.scaling == "longrope":
            return weights["rope_factors_long.weight" if n_ctx > self.n_ctx_orig else "rope_factors_short.weight"]
        return weights.get("rope_freqs.weight")

    def rotate(self, h: Tensor, positions: Tensor, factors: Tensor | None, *, keep_length: bool = False) -> Tensor:
        """Return ``h`` (tokens, heads, head_dim) rotated by ``positions`` (tokens,), in neighbouring pairs.

        ``keep_length`` leaves the magnitude out: for vectors that were rotated once and only move on.
        """
        magnitude = 1.0 if keep_length else self.magnitude
        if self.ext_factor:
            magnitude /= _yarn_magnitude(1 / self.scale)  # ggml multiplies by it
        return ops.rope_ext(
            h,
            positions,
            factors,
            n_dims=self.n_dims,
            n_ctx_orig=self.n_ctx_orig,
            freq_base=self.base,
            freq_scale=self.scale,
            ext_factor=self.ext_factor,
            attn_factor=magnitude,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
        )


def read_rope(keys: Keys, head_dim: int, n_ctx_train: int) -> Rope:
    """Read the keys under ``rope.``.

    Raises:
        UnsupportedModel: a kind of scaling kit does not have. GGUFError: a value out of range. Both name the key.
    """
    where = f"{keys.path}: {keys.prefix}rope"
    n_dims = keys.count("rope.dimension_count", head_dim)
    if n_dims != head_dim or n_dims % 2:
        raise GGUFError(f"{where}.dimension_count is {n_dims}; expected the heads' {head_dim} dims, an even number")
    scaling = keys.choice("rope.scaling.type", "linear", SCALINGS)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    base = keys.number("rope.freq_base", 10000.0)
    if base <= 0 or factor <= 0:
        raise GGUFError(f"{where}.freq_base {base} or rope.scaling.factor {factor} is out of range; expected above 0")
    rope = Rope(
        n_dims=n_dims,
        base=base,
        scale=1.0 if scaling == "none" else 1 / factor,
        scaling=scaling,
        n_ctx_orig=keys.count("rope.scaling.original_context_length", n_ctx_train, largest=(1 << 31) - 1),
        ext_factor=1.0 if scaling == "yarn" else 0.0,
        magnitude=_magnitude(keys, scaling, factor),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    if min(rope.beta_fast, rope.beta_slow, rope.magnitude) <= 0 or (scaling == "yarn" and factor < 1):
        raise GGUFError(f"{where}.scaling: {rope} is out of range; yarn's factor is at least 1, all others above 0")
    return rope


def _magnitude(keys: Keys, scaling: str, factor: float) -> float:
    """Return what rotated vectors are multiplied by: ``attn_factor``, times YaRN's own."""
    given = keys.number("rope.scaling.attn_factor", 1.0)
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0, zero=True)
    if scaling != "yarn":
        keys.number("rope.scaling.yarn_attn_factor", 1.0)
        return given
    own = _yarn_magnitude(factor) / (_yarn_magnitude(factor, log_multiplier) if log_multiplier else 1.0)
    stated = keys.number("rope.scaling.yarn_attn_factor", own)
    if not math.isclose(stated, own, rel_tol=1e-3):
        raise UnsupportedModel(
            f"{keys.path}: {keys.prefix}rope.scaling.yarn_attn_factor is {stated:g}, but a factor of {factor:g} "
            f"makes {own:g}; kit has no other"
        )
    return given * own


def _yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """Return YaRN's temperature of attention as a length of queries and keys: 0.1 ln(factor) + 1."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0
