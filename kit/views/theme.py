"""Colours of pictures and pages, light and dark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """Colours as ``#rrggbb``; ``series`` are told apart by colour-blind people too (Okabe and Ito's set)."""

    name: str
    background: str
    ink: str
    muted: str
    line: str
    accent: str
    series: tuple[str, ...] = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


LIGHT = Theme("light", "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#0b5cad")
DARK = Theme("dark", "#151b23", "#e6edf3", "#9198a1", "#3d444d", "#58a6ff")
