"""What every operation shares: where its node goes, and the checks that name tensors."""

from __future__ import annotations

from typing import Any

from kit.core.context import Core
from kit.core.dtypes import dtype_by_id
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError, ShapeError


def home(*tensors: Tensor) -> Core:
    """Return the context a node over ``tensors`` goes to: the youngest of theirs.

    Raises:
        ArgumentError: something that is no Tensor, or tensors of contexts on different backends.
        ClosedError: a tensor whose context is gone.
    """
    first = tensors[0]
    try:
        core = first._core
        for tensor in tensors:
            tensor.p  # noqa: B018 - raises ClosedError
            other = tensor._core
            if other is not core:
                core = _younger(core, other)
        return core
    except AttributeError:
        wrong = next(t for t in tensors if not isinstance(t, Tensor))
        raise ArgumentError(f"an operation takes kit.Tensor, got {type(wrong).__name__}; make one with ctx.input()") from None


def _younger(one: Core, other: Core) -> Core:
    if one.backend is not other.backend:
        raise ArgumentError(f"contexts {one.name!r} and {other.name!r} are on different backends and cannot share a graph")
    young, old = (one, other) if one.age > other.age else (other, one)
    young.use(old)
    return young


def node(raw: Any, core: Core, *sources: Tensor, ndim: int | None = None) -> Tensor:
    """Wrap a new node; it has as many axes as its widest source unless ``ndim`` says otherwise."""
    return Tensor(raw, core, ndim if ndim is not None else max(t.ndim for t in sources))


def view(raw: Any, core: Core, source: Tensor, ndim: int) -> Tensor:
    """Wrap a node that shares the memory of ``source``."""
    return Tensor(raw, core, ndim, base=source)


def expect(truth: bool, message: str) -> None:
    """Raise ShapeError with ``message`` unless ``truth``."""
    if not truth:
        raise ShapeError(message)


def expect_dtype(tensor: Tensor, *names: str, use: str) -> None:
    """Raise DTypeError unless the tensor's type is one of ``names``."""
    found = dtype_by_id(tensor.p.type).name
    if found not in names:
        raise DTypeError(f"{use} takes {' or '.join(names)}; {tensor.label} is {found}")


def expect_plain(tensor: Tensor, use: str) -> None:
    """Raise ShapeError unless the tensor is contiguous."""
    if not tensor.contiguous:
        raise ShapeError(f"{use} needs contiguous memory; {tensor.label} is a view with gaps or another order: cont() it first")


def ne4(tensor: Tensor) -> tuple[int, int, int, int]:
    """All four ggml extents."""
    return tuple(tensor.p.ne)  # type: ignore[return-value]
