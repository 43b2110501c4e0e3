"""Functions of each element."""

from __future__ import annotations

from typing import Any

from kit.core.native import lib
from kit.core.ops._base import home, node
from kit.core.tensor import Tensor
from kit.errors import ArgumentError


def _each(function: Any, a: Tensor) -> Tensor:
    core = home(a)
    return node(function(core.room(), a.p), core, a)


def scale(a: Tensor, factor: float, bias: float = 0.0) -> Tensor:
    """``a * factor + bias`` with numbers."""
    core = home(a)
    return node(lib.ggml_scale_bias(core.room(), a.p, factor, bias), core, a)


def abs(a: Tensor) -> Tensor:  # noqa: A001 - ggml's name
    """``|a|``."""
    return _each(lib.ggml_abs, a)


def neg(a: Tensor) -> Tensor:
    """``-a``."""
    return _each(lib.ggml_neg, a)


def silu(a: Tensor) -> Tensor:
    """``a * sigmoid(a)``."""
    return _each(lib.ggml_silu, a)


def swiglu_split(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``, both of one shape."""
    core = home(gate, up)
    return node(lib.ggml_swiglu_split(core.room(), gate.p, up.p), core, gate, up)


def with_number(name: str, a: Tensor, number: float) -> Tensor:
    """``a`` and a Python number under the operator called ``name``: add, sub, mul or div."""
    if name == "div" and number == 0:
        raise ArgumentError(f"{a.label} / 0")
    factor, bias = {"add": (1.0, number), "sub": (1.0, -number), "mul": (number, 0.0), "div": (1 / (number or 1), 0.0)}[name]
    return scale(a, factor, bias)


