"""How a context grows: the pools in its chain over the tensors it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.units import bytes_text
from kit.views import markup
from kit.views.form import View
from kit.views.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

    from kit.core.context import Context


@dataclass(frozen=True, repr=False)
class GrowthView(View):
    """Pools and bytes of metadata (``held``) after ``n_tensors`` tensors were made; all three equally long."""

    name: str
    n_tensors: tuple[int, ...]
    n_pools: tuple[int, ...]
    held: tuple[int, ...]

    @classmethod
    def watch(
        cls,
        context: Context,
        make: Callable[[int], object],
        count: int,
        each: Callable[[GrowthView], object] | None = None,
    ) -> GrowthView:
        """Call ``make(i)`` for each i below ``count``, and note how ``context`` grows.

        ``make`` makes one tensor or node in the context; what it returns is not kept. ``each`` is given the view so
        far whenever the context has grown, and at the end: in a notebook, the ``update`` of a display.
        """
        points = [(0, context.n_pools, context.metadata_nbytes)]

        def view() -> GrowthView:
            tensors, pools, held = zip(*points, strict=True)
            return cls(context.name, tensors, pools, held)

        for i in range(count):
            make(i)
            if context.n_pools != points[-1][1]:
                points += [(i, *points[-1][1:]), (i + 1, context.n_pools, context.metadata_nbytes)]
                if each is not None:
                    each(view())
        points.append((count, context.n_pools, context.metadata_nbytes))
        whole = view()
        if each is not None:
            each(whole)
        return whole

    @property
    def title(self) -> str:
        """Names the context and where it ended."""
        end = bytes_text(self.held[-1])
        return f"{self.name!r}: {self.n_tensors[-1]:,} tensors, {self.n_pools[-1]} pools, {end} of metadata"

    def text(self) -> str:
        """Return a line whenever a pool was added."""
        lines = [self.title]
        previous = 0
        for tensors, pools, held in zip(self.n_tensors, self.n_pools, self.held, strict=True):
            if pools != previous:
                lines.append(f"  {tensors:>9,} tensors  {pools:>3} pools  {bytes_text(held):>10}")
            previous = pools
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The three series."""
        return {"n_tensors": list(self.n_tensors), "n_pools": list(self.n_pools), "held_bytes": list(self.held)}

    def size(self) -> tuple[float, float]:
        """Fixed."""
        return 6.6, 2.9

    def paint(self, canvas: FigureBase, theme: Theme) -> None:
        """A staircase of bytes, each step a new pool."""
        from kit.views import paint

        paint.heading(canvas, self, theme, "each step is a new pool; tensors made before never move")
        axes = paint.axes_at(canvas, self, 0.85, 0.65, 5.5, 1.7)
        sizes = [nbytes / 1024 for nbytes in self.held]
        axes.fill_between(self.n_tensors, sizes, color=theme.accent, alpha=0.18, lw=0)
        axes.plot(self.n_tensors, sizes, color=theme.accent, lw=1.6)
        axes.set_xlim(0, max(self.n_tensors[-1], 1))
        axes.set_ylim(0, max(sizes) * 1.08)
        axes.locator_params(nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("tensors")
        axes.set_ylabel("metadata, KiB")
        paint.bare(axes, theme, grid="y")

    def table(self) -> str:
        """A row whenever a pool was added."""
        rows = []
        for i, pools in enumerate(self.n_pools):
            if i == 0 or pools != self.n_pools[i - 1]:
                rows.append((f"{self.n_tensors[i]:,}", str(pools), bytes_text(self.held[i])))
        return markup.table(("tensors", "pools", "metadata"), rows, right=(0, 1, 2))
