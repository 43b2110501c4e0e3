"""Memory: what is live, who owns it, what it is for, what was not given back, and what it costs."""

from kit.core.scope import region
from kit.memory.cost_records import Copy, Cost, Costs, Refused
from kit.memory.costs import costs
from kit.memory.diff import Diff, diff
from kit.memory.events import Event, Events
from kit.memory.input_lab import InputLab, InputLeg, input_lab
from kit.memory.leaks import Leak
from kit.memory.live import Live, live
from kit.memory.pinned import LockedPool, PinnedVerdict, pinned_pays
from kit.memory.report import MemoryReport, Row
from kit.memory.tracker import Tracker

__all__ = [
    "Copy",
    "Cost",
    "Costs",
    "Diff",
    "Event",
    "Events",
    "InputLab",
    "InputLeg",
    "Leak",
    "Live",
    "LockedPool",
    "MemoryReport",
    "PinnedVerdict",
    "Refused",
    "Row",
    "Tracker",
    "costs",
    "diff",
    "input_lab",
    "live",
    "pinned_pays",
    "region",
]
