"""Tensors: names for places in a computation; values only where something put or computed them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.checks import check_name
from kit.core.compute import turn
from kit.core.dtypes import dtype_by_id
from kit.core.native import ffi, lib, text
from kit.errors import ClosedError, DTypeError, NotComputedError, ShapeError
from kit.units import shape_text

if TYPE_CHECKING:
    from kit.core.context import Core

_VIEW_OPS = frozenset(
    int(op) for op in (lib.GGML_OP_RESHAPE, lib.GGML_OP_VIEW, lib.GGML_OP_PERMUTE, lib.GGML_OP_TRANSPOSE)
)


class Tensor:
    """One ggml tensor: a leaf that holds values, a view of one, or a node to be computed.

    ``shape`` is numpy order, ``ne`` and ``nb`` are ggml's. Reading a node that no computation has
    produced raises NotComputedError; using a tensor whose context was closed or reset raises ClosedError.
    """

    __slots__ = ("__weakref__", "_base", "_core", "_generation", "_name", "_p", "ndim")
    __array_ufunc__ = None  # numpy leaves ``array * tensor`` to us
    __hash__ = object.__hash__

    def __init__(self, p: Any, core: Core, ndim: int, base: Tensor | None = None, name: str | None = None) -> None:
        self._p = p
        self._core = core
        self._generation = core.generation
        self._base = base
        self._name = name
        self.ndim = ndim

    @property
    def p(self) -> Any:
        """ggml's pointer.

        Raises:
            ClosedError: the context was closed or reset.
        """
        if self._generation != self._core.generation:
            raise self._dead()
        return self._p

    def _dead(self) -> ClosedError:
        return self._core.dead(
            self._core.name, self._core.closed, f"tensor {self._name!r}" if self._name else "a tensor"
        )

    @property
    def core(self) -> Core:
        """What owns the metadata."""
        return self._core

    @property
    def name(self) -> str:
        """The name, as ggml has it."""
        return text(self.p.name)

    @name.setter
    def name(self, value: str) -> None:
        lib.ggml_set_name(self.p, check_name(value))
        self._name = value

    def named(self, name: str) -> Tensor:
        """Set the name and return the tensor."""
        self.name = name
        return self

    @property
    def label(self) -> str:
        """Name and shape for messages."""
        name = self.name
        return f"{name or self.op.lower() + ' (unnamed)'} {shape_text(self.shape)}"

    @property
    def ne(self) -> list[int]:
        """Extents in ggml order, as many as the tensor has axes."""
        return list(self.p.ne[0 : self.ndim])

    @property
    def nb(self) -> list[int]:
        """Strides in bytes, ggml order."""
        return list(self.p.nb[0 : self.ndim])

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in numpy order: ``ne`` reversed."""
        return tuple(self.p.ne[0 : self.ndim])[::-1]

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(lib.ggml_nelements(self.p))

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element."""
        return int(lib.ggml_nbytes(self.p))

    @property
    def dtype(self) -> str:
        """ggml's name of the element type."""
        return dtype_by_id(self.p.type).name

    @property
    def op(self) -> str:
        """ggml's name of the operation that makes this tensor; ``NONE`` for a leaf."""
        return text(lib.ggml_op_desc(self.p)) if self.p.op != lib.GGML_OP_NONE else "NONE"

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other."""
        return bool(lib.ggml_is_contiguous(self.p))

    @property
    def buffer_type(self) -> str | None:
        """Name of the buffer the data lies in; None while it has none."""
        buffer = self.p.view_src.buffer if self.p.view_src != ffi.NULL else self.p.buffer
        return text(lib.ggml_backend_buffer_name(buffer)) if buffer != ffi.NULL else None

    @property
    def address(self) -> int:
        """The pointer as a number: identity of the ggml tensor."""
        return int(ffi.cast("uintptr_t", self.p))

    def set(self, values: npt.ArrayLike) -> Tensor:
        """Copy ``values`` in, converted to the tensor's type (quantized by ggml where it is quantized).

        Allocates the tensor and its context's other leaves if they have no memory yet. Returns the tensor.

        Raises:
            ShapeError: another shape. DTypeError: values of a kind the type cannot hold.
            NotComputedError: the tensor is a node, whose value only a computation can give.
            OutOfMemory: no room.
        """
        root = self.root
        if root.op != "NONE":
            raise NotComputedError(f"{self.label} is computed by {root.op}; only leaves and views of leaves can be set")
        with turn():
            root.core.allocate()
            root.core.expect_memory(root.address, self.label)
            transfer.write(self, values)
            root.core.ready.add(root.address)
        return self

    def numpy(self) -> npt.NDArray[Any]:
        """Return a copy of the values, shape in numpy order; bf16 and quantized types as float32.

        Raises:
            NotComputedError: nothing has set or computed them. ClosedError: the context, or the buffer they lay in,
                was closed.
        """
        with turn():
            chain = self.chain()
            root = chain[-1]
            for step in chain:
                if step.address not in step.core.ready and (step._base is None or not step.is_view):
                    raise NotComputedError(self._why_unreadable(step))
            root.core.expect_memory(root.address, self.label)
            return transfer.read(self)

    def _why_unreadable(self, root: Tensor) -> str:
        if root.op == "NONE":
            return f"{self.label} was never set; call set() or feed it to compute()"
        return (
            f"{self.label} has not been computed, or is not an output of the graph that was; "
            "compute ctx.graph(tensor) first, and give every tensor you want to read as an output"
        )

    @property
    def root(self) -> Tensor:
        """The tensor whose memory this one shares: itself, or the source of the view."""
        tensor = self
        while tensor._base is not None:
            tensor = tensor._base
        tensor.p  # noqa: B018 - raises ClosedError
        return tensor

    def chain(self) -> list[Tensor]:
        """This tensor, what it shares memory with, and so on to the root."""
        found = [self]
        while found[-1]._base is not None:
            found.append(found[-1]._base)
        found[-1].p  # noqa: B018 - raises ClosedError
        return found

    @property
    def is_view(self) -> bool:
        """Whether the tensor only renames memory of another."""
        return int(self.p.op) in _VIEW_OPS

    def item(self) -> float | int:
        """Return the one element of a tensor of one element."""
        if self.size != 1:
            raise ShapeError(f"{self.label} has {self.size} elements; item() needs exactly one")
        return self.numpy().reshape(-1)[0].item()  # type: ignore[no-any-return]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        raise TypeError(f"{self.label} cannot be iterated over; use numpy() for its values or slices for views")

    def __bool__(self) -> bool:
        raise TypeError(f"{self.label} has no truth value; nothing is computed yet, use numpy() after compute()")

    @property
    def T(self) -> Tensor:  # noqa: N802 - numpy's name
        """A view with all axes reversed for 2 axes, the last two exchanged for more; one axis stays as it is."""
        if self.ndim == 1:
            return self
        if self._base is not None and self.op == "TRANSPOSE":
            return self._base
        return (_ops or _load_ops()).transpose(self)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any) -> Tensor:
        """A view of another shape (numpy order), one extent may be -1."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return (_ops or _load_ops()).reshape(self, wanted)  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Tensor:
        from kit.core.slicing import slice_view

        return slice_view(self, key)

    def __add__(self, other: Any) -> Tensor:
        if type(other) is Tensor:
            return (_ops or _load_ops()).add(self, other)  # type: ignore[no-any-return]
        return _operate("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _operate("add", self, other)

    def __sub__(self, other: Any) -> Tensor:
        if type(other) is Tensor:
            return (_ops or _load_ops()).sub(self, other)  # type: ignore[no-any-return]
        return _operate("sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        if isinstance(other, np.ndarray):
            raise _array_is_no_tensor(self)
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        return (_ops or _load_ops()).scale(self, -1.0, other)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Tensor:
        if type(other) is Tensor:
            return (_ops or _load_ops()).mul(self, other)  # type: ignore[no-any-return]
        return _operate("mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _operate("mul", self, other)

    def __truediv__(self, other: Any) -> Tensor:
        if type(other) is Tensor:
            return (_ops or _load_ops()).div(self, other)  # type: ignore[no-any-return]
        return _operate("div", self, other)

    def __neg__(self) -> Tensor:
        return (_ops or _load_ops()).neg(self)  # type: ignore[no-any-return]

    def __abs__(self) -> Tensor:
        return (_ops or _load_ops()).abs(self)  # type: ignore[no-any-return]

    def __matmul__(self, other: Any) -> Tensor:
        if isinstance(other, np.ndarray):
            raise _array_is_no_tensor(self)
        return (_ops or _load_ops()).matmul(self, other)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        if self._generation != self._core.generation:
            return f"Tensor({self._name!r}, gone with context {self._core.name!r})"
        made = "" if self.op == "NONE" else f", {self.op}"
        return f"Tensor({self.name!r}, shape {shape_text(self.shape)}, {self.dtype}{made})"


_NUMBERS = (bool, int, float, np.integer, np.floating)
_ops: Any = None


def _load_ops() -> Any:
    """Bind kit.core.ops, which itself needs this module, at the first use of an operator."""
    global _ops
    _ops = importlib.import_module("kit.core.ops")
    return _ops


def _array_is_no_tensor(beside: Tensor) -> DTypeError:
    return DTypeError(
        f"an array cannot be a node of a graph beside {beside.label}: "
        "make it a tensor, ctx.tensor(array.shape).set(array), or an input that compute() feeds"
    )


def _operate(name: str, left: Tensor, right: Any) -> Tensor:
    ops = _ops or _load_ops()
    if isinstance(right, _NUMBERS):
        return ops.with_number(name, left, right)  # type: ignore[no-any-return]
    if isinstance(right, np.ndarray):
        raise _array_is_no_tensor(left)
    if not isinstance(right, Tensor):
        return NotImplemented  # type: ignore[no-any-return]
    return getattr(ops, name)(left, right)  # type: ignore[no-any-return]
