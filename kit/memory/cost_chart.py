"""Pictures of costs, drawn without any global state of matplotlib's."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from kit.memory.cost_records import label_of
from kit.units import bytes_text, time_text

if TYPE_CHECKING:
    from kit.memory.cost_records import Costs
    from kit.memory.input_lab import InputLab


def draw_costs(costs: Costs, form: str) -> bytes:
    """Return the curves as ``form`` (png or svg); copies get a plot of their own where there are any."""
    figure = Figure(figsize=(12 if costs.copies else 7.5, 5), layout="constrained")
    axes = figure.subplots(1, 2 if costs.copies else 1, squeeze=False)[0]
    _log_log(axes[0], "allocate, touch, free")
    for label in dict.fromkeys(map(label_of, costs)):
        rows = sorted((c for c in costs if label_of(c) == label), key=lambda c: c.nbytes)
        sizes = [c.nbytes for c in rows]
        (line,) = axes[0].plot(sizes, [max(c.total_ns, 1) for c in rows], marker="o", markersize=4, label=label)
        low, high = [max(c.total_p10_ns, 1) for c in rows], [max(c.total_p90_ns, 1) for c in rows]
        axes[0].fill_between(sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        fallen = [c for c in rows if c.fell_back]
        axes[0].scatter([c.nbytes for c in fallen], [c.total_ns for c in fallen], marker="x", s=90, color="black")
    axes[0].legend(fontsize=8)
    if costs.copies:
        _log_log(axes[1], "copy to the device (from it: dashed)")
        _draw_copies(axes[1], costs)
    return _saved(figure, form)


def draw_lab(lab: InputLab, form: str) -> bytes:
    """Return bars of the time a token's inputs take, and of the memory that grows."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    times, growth = figure.subplots(1, 2)
    labels = [leg.shown for leg in lab]
    colors = ["#c0392b" if leg.leak else "#2e86c1" for leg in lab]
    medians = [leg.token_ns for leg in lab]
    spread = [
        [max(0, leg.token_ns - leg.token_p10_ns) for leg in lab],
        [max(0, leg.token_p90_ns - leg.token_ns) for leg in lab],
    ]
    times.barh(labels, medians, xerr=spread, color=colors)
    times.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(int(value))))
    times.set_title("a token's inputs: allocate, fill, let go")
    growth.barh(labels, [max(0, leg.growth_nbytes) for leg in lab], color=colors)
    growth.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(int(value))))
    growth.xaxis.set_major_locator(MultipleLocator(_binary_step(max(leg.growth_nbytes for leg in lab))))
    growth.set_yticklabels([])
    growth.set_title(f"resident growth over {lab[0].n_tokens} tokens")
    for axis in (times, growth):
        axis.invert_yaxis()
        axis.tick_params(labelsize=8)
    return _saved(figure, form)


def _binary_step(most: int) -> float:
    """Distance of ticks up to ``most`` bytes: 1, 2 or 5 times a power of ten, of a binary unit."""
    unit = float(1024 ** int(math.log(max(most, 1), 1024)))
    raw = max(most, 1) / unit / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step: float = next(n for n in (1, 2, 5, 10) if n * power >= raw) * power
    return unit * step


def _draw_copies(axis: Any, costs: Costs) -> None:
    for label in dict.fromkeys((c.kind, c.device) for c in costs.copies):
        rows = sorted((c for c in costs.copies if (c.kind, c.device) == label), key=lambda c: c.nbytes)
        sizes = [c.nbytes for c in rows]
        (line,) = axis.plot(sizes, [max(c.to_ns, 1) for c in rows], marker="o", markersize=4, label=" - ".join(label))
        axis.plot(sizes, [max(c.from_ns, 1) for c in rows], linestyle="--", color=line.get_color())
    axis.legend(fontsize=8)


def _log_log(axis: Any, title: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(int(value))))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(int(value))))
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, which="major", alpha=0.3)
    axis.set_title(title)


def _saved(figure: Figure, form: str) -> bytes:
    FigureCanvasAgg(figure)
    out = io.BytesIO()
    figure.savefig(out, format=form, dpi=110)
    return out.getvalue()
