"""Pictures of plain data: text, HTML, PNG, SVG and JSON from one form each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.views.attention import AttentionView
from kit.views.attention_bars import AttentionBars
from kit.views.bars import PurposeBars
from kit.views.form import View
from kit.views.growth import GrowthView
from kit.views.lens_grid import LensGrid
from kit.views.reads import ReadsView
from kit.views.run_view import RunView
from kit.views.stage_table import StageTable

if TYPE_CHECKING:
    from kit.models.session.run import Run

__all__ = [
    "AttentionBars",
    "AttentionView",
    "GrowthView",
    "LensGrid",
    "PurposeBars",
    "ReadsView",
    "RunView",
    "StageTable",
    "View",
    "view",
]


def view(run: Run) -> RunView:
    """Return the picture of what a run kept: the logit lens, attention maps, or the likeliest next tokens."""
    return RunView.of(run)
