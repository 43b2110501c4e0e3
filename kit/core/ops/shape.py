"""Views and copies that change shape or order, not values."""

from __future__ import annotations

from collections.abc import Sequence

from kit.core.dtypes import dtype_by_id, dtype_of
from kit.core.native import lib
from kit.core.ops._base import expect, expect_plain, home, node, view
from kit.core.tensor import Tensor
from kit.units import shape_text


def reshape(a: Tensor, shape: Sequence[int]) -> Tensor:
    """A view of ``a`` with another ``shape`` (numpy order); one extent may be -1.

    Raises:
        ShapeError: another number of elements, or ``a`` is not contiguous.
    """
    core = home(a)
    extents = _resolve(a, tuple(int(extent) for extent in shape))
    expect_plain(a, "reshape")
    ne = (*reversed(extents), 1, 1, 1, 1)[:4]
    return view(lib.ggml_reshape_4d(core.room(), a.p, *ne), core, a, len(extents))


def transpose(a: Tensor) -> Tensor:
    """A view of ``a`` with its last two axes exchanged."""
    core = home(a)
    return view(lib.ggml_transpose(core.room(), a.p), core, a, max(a.ndim, 2))


def permute(a: Tensor, order: Sequence[int]) -> Tensor:
    """A view with its axes in another order, as `numpy.transpose`: axis i of the result is axis ``order[i]``.

    Raises:
        ShapeError: ``order`` is no permutation of the axes.
    """
    core = home(a)
    n = a.ndim
    expect(sorted(order) == list(range(n)), f"permute: {tuple(order)} is no order of the {n} axes of {a.label}")
    axes = [0, 1, 2, 3]
    for new, old in enumerate(order):
        axes[n - 1 - old] = n - 1 - new  # ggml counts from the last axis and asks where each old one goes
    return view(lib.ggml_permute(core.room(), a.p, *axes), core, a, n)


def cont(a: Tensor) -> Tensor:
    """A contiguous copy of ``a``."""
    core = home(a)
    return node(lib.ggml_cont(core.room(), a.p), core, a)


def cpy(a: Tensor, into: Tensor) -> Tensor:
    """Copy ``a`` into ``into``, converting the type; the result is a view of ``into``.

    Raises:
        ShapeError: another number of elements.
    """
    core = home(a, into)
    expect(a.size == into.size, f"cpy: {a.label} has {a.size} elements, {into.label} has {into.size}")
    return view(lib.ggml_cpy(core.room(), a.p, into.p), core, into, into.ndim)


def cast(a: Tensor, dtype: str) -> Tensor:
    """A copy of ``a`` as another element type."""
    core = home(a)
    return node(lib.ggml_cast(core.room(), a.p, dtype_of(dtype).id), core, a)


def _resolve(a: Tensor, extents: tuple[int, ...]) -> tuple[int, ...]:
    free = extents.count(-1)
    known = 1
    for extent in extents:
        known *= 1 if extent == -1 else extent
    if free == 1 and known > 0 and a.size % known == 0:
        extents = tuple(a.size // known if extent == -1 else extent for extent in extents)
        known = a.size
    fits = free <= 1 and known == a.size and 1 <= len(extents) <= 4 and all(extent > 0 for extent in extents)
    expect(fits, f"reshape: {a.label} has {a.size} elements and cannot take shape {shape_text(extents)}")
    block = dtype_by_id(a.p.type).block
    expect(extents[-1] % block == 0, f"reshape: rows of {extents[-1]} cut the blocks of {block} elements of {a.label}")
    return extents
