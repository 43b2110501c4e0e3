"""Memory: what is live, who owns it, what it is for, what it costs."""

from kit.memory.cost_records import Copy, Cost, Costs, Refused
from kit.memory.costs import costs
from kit.memory.input_lab import InputLab, InputLeg, input_lab
from kit.memory.live import Live, live
from kit.memory.pinned import LockedPool, PinnedVerdict, pinned_pays

__all__ = [
    "Copy",
    "Cost",
    "Costs",
    "InputLab",
    "InputLeg",
    "Live",
    "LockedPool",
    "PinnedVerdict",
    "Refused",
    "costs",
    "input_lab",
    "live",
    "pinned_pays",
]
