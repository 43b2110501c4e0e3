"""The benchmarks there are."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import (
    chain,
    cold,
    contexts,
    decode,
    engine,
    first_token,
    imports,
    loading,
    memory_events,
    memory_passes,
    memory_tracking,
    memory_whisper,
    metadata,
    stepping,
)
from benchmarks.measure import Figure

#: Takes the number of rounds and a scale from 0 to 1 for sizes; 1 is what the bounds are for.
Benchmark = Callable[[int, float], list[Figure]]

BENCHMARKS: dict[str, Benchmark] = {
    "imports": imports.run,
    "contexts": contexts.run,
    "chain": chain.run,
    "metadata": metadata.run,
    "decode": decode.run,
    "stepping": stepping.run,
    "cold": cold.run,
    "engine": engine.run,
    "first_token": first_token.run,
    "loading": loading.run,
    "memory_tracking": memory_tracking.run,
    "memory_passes": memory_passes.run,
    "memory_events": memory_events.run,
    "memory_whisper": memory_whisper.run,
}
