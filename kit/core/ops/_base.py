"""What every operation shares: where its node goes, and the checks that name tensors."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from kit.core.context import Core
from kit.core.dtypes import dtype_by_id
from kit.core.native import ffi, lib
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, DTypeError, ShapeError
from kit.units import shape_text

#: ggml's kernels keep strides, paddings and kernel sizes in C ints and multiply them
LARGEST_STEP = 1 << 20
_MAX_NBYTES = 1 << 62
_TRANSPOSE = int(lib.GGML_OP_TRANSPOSE)


def home(*tensors: Tensor) -> Core:
    """Return the context a node over ``tensors`` goes to: the youngest of theirs.

    Raises:
        ArgumentError: something that is no Tensor, or tensors of contexts on different backends.
        ClosedError: a tensor whose context, or that of the memory it is a view of, is gone.
    """
    try:
        core = tensors[0]._core
        for tensor in tensors:
            other = tensor._core
            if tensor._generation != other.generation:
                tensor.p  # noqa: B018 - raises ClosedError
            if tensor._base is not None:
                tensor.root  # noqa: B018 - raises ClosedError: ggml looks into the source of a view
                if tensor._p.op == _TRANSPOSE and is_quantized(tensor):
                    raise _no_transposed_blocks(tensor)
            if other is not core:
                core = _younger(core, other)
        return core
    except AttributeError:
        wrong = next((t for t in tensors if not isinstance(t, Tensor)), None)
        if wrong is None and all(isinstance(t, Tensor) for t in tensors):
            raise
        raise ArgumentError(
            f"an operation takes kit.Tensor, got {type(wrong).__name__}; make one with ctx.input()"
        ) from None


def _no_transposed_blocks(tensor: Tensor) -> ShapeError:
    return ShapeError(
        f"{tensor.label} is the transpose of a quantized matrix, whose blocks lie along the other axis; "
        f"it can only stand behind @: x @ w.T"
    )


def _younger(one: Core, other: Core) -> Core:
    if one.backend is not other.backend:
        raise ArgumentError(
            f"contexts {one.name!r} and {other.name!r} are on different backends and cannot share a graph"
        )
    young, old = (one, other) if one.age > other.age else (other, one)
    young.use(old)
    return young


def node(raw: Any, core: Core, *sources: Tensor, ndim: int | None = None) -> Tensor:
    """Wrap a new node; it has as many axes as its widest source unless ``ndim`` says otherwise."""
    return Tensor(raw, core, ndim if ndim is not None else max(t.ndim for t in sources))


def chain(raw: Any, core: Core, ndim: int) -> Tensor:
    """Wrap the last of several nodes that ggml made at once; where it is a view, it is one of another of them."""
    base = None if raw.view_src == ffi.NULL else Tensor(raw.view_src, core, 4)
    return Tensor(raw, core, ndim, base=base)


def view(raw: Any, core: Core, source: Tensor, ndim: int) -> Tensor:
    """Wrap a node that shares the memory of ``source``."""
    return Tensor(raw, core, ndim, base=source)


def given(tensor: Tensor | None) -> Any:
    """ggml's pointer of an optional tensor."""
    return ffi.NULL if tensor is None else tensor.p


def present(*tensors: Tensor | None) -> list[Tensor]:
    """The tensors among optional ones."""
    return [tensor for tensor in tensors if tensor is not None]


def expect(truth: bool, message: Callable[[], str]) -> None:
    """Raise ShapeError with what ``message`` returns unless ``truth``: labels cost more than the check."""
    if not truth:
        raise ShapeError(message())


@functools.cache
def ids_of(*names: str) -> frozenset[int]:
    """ggml's numbers of the element types ``names``."""
    return frozenset(int(getattr(lib, f"GGML_TYPE_{name.upper()}")) for name in names)


def expect_dtype(tensor: Tensor, *names: str, use: str) -> None:
    """Raise DTypeError unless the tensor's type is one of ``names``."""
    if tensor.p.type not in ids_of(*names):
        raise DTypeError(f"{use} takes {' or '.join(names)}; {tensor.label} is {tensor.dtype}; cast() it first")


def expect_plain(tensor: Tensor, use: str) -> None:
    """Raise ShapeError unless the tensor is contiguous."""
    if not tensor.contiguous:
        raise ShapeError(
            f"{use} needs contiguous memory; {tensor.label} is a view with gaps or another order: cont() it first"
        )


def expect_rows(tensor: Tensor, use: str) -> None:
    """Raise ShapeError unless the elements of each row, the last axis, lie one after the other."""
    raw = tensor.p
    if raw.nb[0] != lib.ggml_type_size(raw.type):
        raise ShapeError(
            f"{use} needs rows without gaps; the last axis of the view {tensor.label} has them: cont() it first"
        )


def expect_f32(use: str, *tensors: Tensor | None) -> None:
    """Raise unless every tensor is contiguous f32."""
    for tensor in present(*tensors):
        expect_dtype(tensor, "f32", use=use)
        expect_plain(tensor, use)


def ne4(tensor: Tensor) -> tuple[int, int, int, int]:
    """All four ggml extents."""
    return tuple(tensor.p.ne)


def shape4(tensor: Tensor) -> tuple[int, int, int, int]:
    """All four extents in numpy order."""
    return ne4(tensor)[::-1]


def expect_shape(tensor: Tensor, shape: tuple[int, ...], use: str, what: str) -> None:
    """Raise ShapeError unless the tensor has ``shape`` (numpy order, leading extents of one do not count)."""
    wanted = (1,) * (4 - len(shape)) + tuple(shape)
    expect(
        shape4(tensor) == wanted, lambda: f"{use}: {what} {tensor.label} should have shape {shape_text(tuple(shape))}"
    )


def expect_same_shape(a: Tensor, b: Tensor, use: str) -> None:
    """Raise ShapeError unless the two have the same shape."""
    expect(
        bool(lib.ggml_are_same_shape(a.p, b.p)), lambda: f"{use}: {a.label} and {b.label} should have the same shape"
    )


def expect_extents(use: str, extents: Iterable[int], nbytes: int = 4) -> None:
    """Raise ShapeError for a result with an extent below 1 or larger than any machine addresses."""
    total = nbytes
    for extent in extents:
        if extent < 1:
            raise ShapeError(f"{use}: the result would have an extent of {extent}")
        total *= extent
    expect(total <= _MAX_NBYTES, lambda: f"{use}: the result would take {total} bytes, more than any machine addresses")


def integer(value: Any, use: str, what: str, low: int, high: int) -> int:
    """Return ``value`` as an int between ``low`` and ``high``.

    Raises:
        ArgumentError: it is none.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{use}: {what} is {value!r}; give an integer") from None
    if not low <= number <= high:
        raise ArgumentError(f"{use}: {what} is {number}; give {low} to {high}")
    return number


def step(value: Any, use: str, what: str) -> int:
    """Return ``value`` as a stride, dilation or kernel size: at least 1."""
    return integer(value, use, what, 1, LARGEST_STEP)


def padding(value: Any, use: str, what: str) -> int:
    """Return ``value`` as a padding: at least 0."""
    return integer(value, use, what, 0, LARGEST_STEP)


def real(value: Any, use: str, what: str, low: float = -math.inf) -> float:
    """Return ``value`` as a float that is no NaN and not below ``low``.

    Raises:
        ArgumentError: it is none.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{use}: {what} is {value!r}; give a number") from None
    if math.isnan(number) or number < low:
        raise ArgumentError(
            f"{use}: {what} is {number}; give a number" + (f" from {low} on" if low > -math.inf else "")
        )
    return number


def choice(value: Any, use: str, what: str, known: dict[str, int]) -> int:
    """Return ggml's number for the word ``value``.

    Raises:
        ArgumentError: it is none of ``known``.
    """
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{use}: {what} is {value!r}; give one of {', '.join(map(repr, known))}")
    return known[value]


def axis_of(a: Tensor, axis: Any, use: str) -> int:
    """Return numpy's ``axis`` of ``a`` as ggml's number of it."""
    return a.ndim - 1 - integer(axis, use, "axis", -a.ndim, a.ndim - 1) % a.ndim


def convertible(number: int, *, readable: bool = False, writable: bool = False, product: bool = False) -> bool:
    """Whether the CPU backend reads type ``number`` as float, writes it from float, multiplies with it."""
    cpu = lib.ggml_get_type_traits_cpu(number)
    if readable and number != lib.GGML_TYPE_F32 and lib.ggml_get_type_traits(number).to_float == ffi.NULL:
        return False
    if writable and number != lib.GGML_TYPE_F32 and cpu.from_float == ffi.NULL:
        return False
    return not (product and cpu.vec_dot == ffi.NULL)


def is_quantized(tensor: Tensor) -> bool:
    """Whether the element type is made of blocks."""
    return dtype_by_id(tensor.p.type).quantized
