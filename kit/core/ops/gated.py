"""Gated linear units: an activation of one half of the features times the other half.

The plain forms take ``a`` (..., 2 * n) and activate its first half; ``_swapped`` activates the second;
``_split`` takes the two halves as tensors of one shape. All take f32 or f16 and give (..., n).
"""

from __future__ import annotations

from typing import Any

from kit.core.native import lib
from kit.core.ops._base import expect, expect_dtype, expect_same_shape, home, node, real
from kit.core.tensor import Tensor
from kit.errors import DTypeError


def reglu(a: Tensor) -> Tensor:
    """``relu(first) * second``."""
    return _whole(lib.ggml_reglu, "reglu", a)


def reglu_swapped(a: Tensor) -> Tensor:
    """``first * relu(second)``."""
    return _whole(lib.ggml_reglu_swapped, "reglu_swapped", a)


def geglu(a: Tensor) -> Tensor:
    """``gelu(first) * second``."""
    return _whole(lib.ggml_geglu, "geglu", a)


def geglu_swapped(a: Tensor) -> Tensor:
    """``first * gelu(second)``."""
    return _whole(lib.ggml_geglu_swapped, "geglu_swapped", a)


def swiglu(a: Tensor) -> Tensor:
    """``silu(first) * second``."""
    return _whole(lib.ggml_swiglu, "swiglu", a)


def swiglu_swapped(a: Tensor) -> Tensor:
    """``first * silu(second)``."""
    return _whole(lib.ggml_swiglu_swapped, "swiglu_swapped", a)


def geglu_erf(a: Tensor) -> Tensor:
    """``gelu_erf(first) * second``."""
    return _whole(lib.ggml_geglu_erf, "geglu_erf", a)


def geglu_erf_swapped(a: Tensor) -> Tensor:
    """``first * gelu_erf(second)``."""
    return _whole(lib.ggml_geglu_erf_swapped, "geglu_erf_swapped", a)


def geglu_quick(a: Tensor) -> Tensor:
    """``gelu_quick(first) * second``."""
    return _whole(lib.ggml_geglu_quick, "geglu_quick", a)


def geglu_quick_swapped(a: Tensor) -> Tensor:
    """``first * gelu_quick(second)``."""
    return _whole(lib.ggml_geglu_quick_swapped, "geglu_quick_swapped", a)


def reglu_split(gate: Tensor, up: Tensor) -> Tensor:
    """``relu(gate) * up``."""
    return _split(lib.ggml_reglu_split, "reglu_split", gate, up)


def geglu_split(gate: Tensor, up: Tensor) -> Tensor:
    """``gelu(gate) * up``."""
    return _split(lib.ggml_geglu_split, "geglu_split", gate, up)


def swiglu_split(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``, both of one shape and type."""
    return _split(lib.ggml_swiglu_split, "swiglu_split", gate, up)


def geglu_erf_split(gate: Tensor, up: Tensor) -> Tensor:
    """``gelu_erf(gate) * up``."""
    return _split(lib.ggml_geglu_erf_split, "geglu_erf_split", gate, up)


def geglu_quick_split(gate: Tensor, up: Tensor) -> Tensor:
    """``gelu_quick(gate) * up``."""
    return _split(lib.ggml_geglu_quick_split, "geglu_quick_split", gate, up)


def swiglu_oai(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """``g * sigmoid(alpha * g) * (u + 1)`` with g at most ``limit`` and u within +-``limit``; f32."""
    expect_dtype(_tensor(gate, up), "f32", use="swiglu_oai")
    numbers = real(alpha, "swiglu_oai", "alpha"), real(limit, "swiglu_oai", "limit")
    return _split(lib.ggml_swiglu_oai, "swiglu_oai", gate, up, *numbers)


def _tensor(gate: Tensor, up: Tensor) -> Tensor:
    home(gate, up)
    return gate


def _expect_glu(name: str, a: Tensor) -> None:
    expect_dtype(a, "f32", "f16", use=name)
    expect(
        bool(lib.ggml_is_contiguous_1(a.p)),
        lambda: f"{name}: {a.label} is a view in an order ggml cannot walk; cont() it first",
    )


def _whole(function: Any, name: str, a: Tensor) -> Tensor:
    core = home(a)
    _expect_glu(name, a)
    expect(a.p.ne[0] % 2 == 0, lambda: f"{name}: the last axis of {a.label} is odd and has no halves")
    return node(function(core.room(), a.p), core, a)


def _split(function: Any, name: str, gate: Tensor, up: Tensor, *numbers: float) -> Tensor:
    core = home(gate, up)
    _expect_glu(name, gate)
    _expect_glu(name, up)
    expect_same_shape(gate, up, name)
    if gate.p.type != up.p.type:
        raise DTypeError(f"{name}: {gate.label} is {gate.dtype}, {up.label} is {up.dtype}; cast() one of them")
    return node(function(core.room(), gate.p, up.p, *numbers), core, gate, up)
