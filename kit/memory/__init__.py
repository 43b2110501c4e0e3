"""Memory: what is live, who owns it, what it is for."""

from kit.memory.live import Live, live

__all__ = ["Live", "live"]
