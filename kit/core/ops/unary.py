"""Functions of each element."""

from __future__ import annotations

from typing import Any

from kit.core.native import lib
from kit.core.ops._base import expect_dtype, expect_plain, expect_rows, home, ids_of, node, real
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError

_FLOATS = ids_of("f32", "f16", "bf16")
_HALVES = ids_of("f32", "f16")  # what ggml's table-driven activations take


def sqr(a: Tensor) -> Tensor:
    """``a**2``."""
    return _each(lib.ggml_sqr, "sqr", a)


def sqrt(a: Tensor) -> Tensor:
    """The square root; NaN below 0."""
    return _each(lib.ggml_sqrt, "sqrt", a)


def log(a: Tensor) -> Tensor:
    """The natural logarithm; NaN below 0."""
    return _each(lib.ggml_log, "log", a)


def expm1(a: Tensor) -> Tensor:
    """``exp(a) - 1``, as that difference: no more exact near 0 than the formula says."""
    return _each(lib.ggml_expm1, "expm1", a)


def softplus(a: Tensor) -> Tensor:
    """``log(1 + exp(a))``; ``a`` itself above 20."""
    return _each(lib.ggml_softplus, "softplus", a)


def sin(a: Tensor) -> Tensor:
    """The sine."""
    return _each(lib.ggml_sin, "sin", a)


def cos(a: Tensor) -> Tensor:
    """The cosine."""
    return _each(lib.ggml_cos, "cos", a)


def abs(a: Tensor) -> Tensor:
    """``|a|``."""
    return _each(lib.ggml_abs, "abs", a)


def sgn(a: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return _each(lib.ggml_sgn, "sgn", a)


def neg(a: Tensor) -> Tensor:
    """``-a``."""
    return _each(lib.ggml_neg, "neg", a)


def step(a: Tensor) -> Tensor:
    """1 above 0, else 0."""
    return _each(lib.ggml_step, "step", a)


def tanh(a: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return _each(lib.ggml_tanh, "tanh", a)


def elu(a: Tensor) -> Tensor:
    """``a`` above 0, else ``exp(a) - 1``."""
    return _each(lib.ggml_elu, "elu", a)


def relu(a: Tensor) -> Tensor:
    """``max(a, 0)``."""
    return _each(lib.ggml_relu, "relu", a)


def leaky_relu(a: Tensor, negative_slope: float) -> Tensor:
    """``a`` above 0, else ``a * negative_slope``; f32 or f16."""
    core = home(a)
    expect_dtype(a, "f32", "f16", use="leaky_relu")
    expect_plain(a, "leaky_relu")
    slope = real(negative_slope, "leaky_relu", "negative_slope")
    return node(lib.ggml_leaky_relu(core.room(), a.p, slope, False), core, a)


def sigmoid(a: Tensor) -> Tensor:
    """``1 / (1 + exp(-a))``."""
    return _each(lib.ggml_sigmoid, "sigmoid", a)


def gelu(a: Tensor) -> Tensor:
    """``a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a**3)))`` from a table of f16; f32 or f16."""
    return _each(lib.ggml_gelu, "gelu", a, _HALVES)


def gelu_erf(a: Tensor) -> Tensor:
    """``a / 2 * (1 + erf(a / sqrt(2)))``; f32 or f16."""
    return _each(lib.ggml_gelu_erf, "gelu_erf", a, _HALVES)


def gelu_quick(a: Tensor) -> Tensor:
    """``a * sigmoid(1.702 * a)`` from a table of f16; f32 or f16."""
    return _each(lib.ggml_gelu_quick, "gelu_quick", a, _HALVES)


def silu(a: Tensor) -> Tensor:
    """``a * sigmoid(a)``; f32 or f16."""
    return _each(lib.ggml_silu, "silu", a, _HALVES)


def hardswish(a: Tensor) -> Tensor:
    """``a * clip(a + 3, 0, 6) / 6``."""
    return _each(lib.ggml_hardswish, "hardswish", a)


def hardsigmoid(a: Tensor) -> Tensor:
    """``clip(a + 3, 0, 6) / 6``."""
    return _each(lib.ggml_hardsigmoid, "hardsigmoid", a)


def exp(a: Tensor) -> Tensor:
    """``e**a``."""
    return _each(lib.ggml_exp, "exp", a)


def floor(a: Tensor) -> Tensor:
    """The next integer below."""
    return _each(lib.ggml_floor, "floor", a)


def ceil(a: Tensor) -> Tensor:
    """The next integer above."""
    return _each(lib.ggml_ceil, "ceil", a)


def round(a: Tensor) -> Tensor:
    """The nearest integer, halves away from 0 (numpy rounds them to even)."""
    return _each(lib.ggml_round, "round", a)


def trunc(a: Tensor) -> Tensor:
    """The nearest integer toward 0."""
    return _each(lib.ggml_trunc, "trunc", a)


def xielu(a: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Tensor:
    """The xIELU activation with constrained ``p = softplus(alpha_p)``, ``n = beta + softplus(alpha_n)``.

    ``p * a**2 + beta * a`` above 0, else ``n * (expm1(min(a, eps)) - a) + beta * a``.
    """
    core = home(a)
    expect_dtype(a, "f32", "f16", "bf16", use="xielu")
    expect_plain(a, "xielu")
    names = ("alpha_n", "alpha_p", "beta", "eps")
    numbers = [real(value, "xielu", name) for value, name in zip((alpha_n, alpha_p, beta, eps), names, strict=True)]
    return node(lib.ggml_xielu(core.room(), a.p, *numbers), core, a)


def scale(a: Tensor, factor: float, bias: float = 0.0) -> Tensor:
    """``a * factor + bias`` with numbers, for a contiguous f32 ``a``.

    Raises:
        DTypeError: another type. ShapeError: a view with gaps.
    """
    core = home(a)
    raw = a._p
    if raw.type:  # f32 is number 0
        expect_dtype(a, "f32", use="scale")
    if a._base is not None:
        expect_plain(a, "scale")
    try:
        return Tensor(lib.ggml_scale_bias(core.room(), raw, factor, bias), core, a.ndim)
    except (TypeError, OverflowError):
        raise ArgumentError(f"scale: {factor!r} and {bias!r} should be numbers") from None


def clamp(a: Tensor, low: float, high: float) -> Tensor:
    """``a`` cut off below ``low`` and above ``high``, f32 or f16; NaN becomes ``high``.

    ggml's own clamp writes over its source; this one clamps a copy.

    Raises:
        ArgumentError: ``low`` above ``high``.
    """
    core = home(a)
    expect_dtype(a, "f32", "f16", use="clamp")
    expect_rows(a, "clamp")
    bottom, top = real(low, "clamp", "low"), real(high, "clamp", "high")
    if bottom > top:
        raise ArgumentError(f"clamp: low {bottom} is above high {top}")
    room = core.room(2)
    copy = node(lib.ggml_dup(room, a.p), core, a)
    return Tensor(lib.ggml_clamp(room, copy.p, bottom, top), core, a.ndim, base=copy)


def with_number(name: str, a: Tensor, number: float) -> Tensor:
    """``a`` and a Python number under the operator called ``name``: add, sub, mul or div."""
    if name == "mul":
        return scale(a, number)
    if name == "add":
        return scale(a, 1.0, number)
    if name == "sub":
        return scale(a, 1.0, -number)
    if name != "div":
        raise ArgumentError(f"{name!r} is none of add, sub, mul, div")
    if number == 0:
        raise ArgumentError(f"{a.label} / 0")
    return scale(a, 1 / number)


def _each(function: Any, name: str, a: Tensor, types: frozenset[int] = _FLOATS) -> Tensor:
    core = home(a)
    raw = a._p
    if raw.type not in types:
        wanted = "f32 or f16" if types is _HALVES else "f32, f16 or bf16"
        raise DTypeError(f"{name} takes {wanted}; {a.label} is {a.dtype}; cast() it first")
    if a._base is not None:
        expect_rows(a, name)
    return Tensor(function(core.room(), raw), core, a.ndim)
