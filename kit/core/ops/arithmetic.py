"""Elementwise arithmetic on two tensors, with ggml's broadcasting: the second repeats over the first."""

from __future__ import annotations

from typing import Any

from kit.core.native import lib
from kit.core.ops._base import expect, home, node
from kit.core.tensor import Tensor


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``; the smaller repeats over the larger. Raises ShapeError where neither repeats."""
    return _commutative(lib.ggml_add, "add", a, b)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """``a - b``; ``b`` repeats over ``a``. Raises ShapeError where it cannot."""
    return _repeated(lib.ggml_sub, "sub", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """``a * b``, elementwise; the smaller repeats over the larger. Raises ShapeError where neither repeats."""
    return _commutative(lib.ggml_mul, "mul", a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    """``a / b``; ``b`` repeats over ``a``. Raises ShapeError where it cannot."""
    return _repeated(lib.ggml_div, "div", a, b)


def _commutative(function: Any, name: str, a: Tensor, b: Tensor) -> Tensor:
    core = home(a, b)
    if not lib.ggml_can_repeat(b.p, a.p) and lib.ggml_can_repeat(a.p, b.p):
        a, b = b, a
    return _repeated(function, name, a, b, core)


def _repeated(function: Any, name: str, a: Tensor, b: Tensor, core: Any = None) -> Tensor:
    core = core or home(a, b)
    if not lib.ggml_can_repeat(b.p, a.p):
        expect(False, f"{name}: {b.label} does not repeat over {a.label}; every axis must divide the other's")
    return node(function(core.room(), a.p, b.p), core, a, b)
