"""All metadata of the demo model, its 49,152 tokens included: kit's reader and the gguf package's."""

from __future__ import annotations

import gguf

import kit
from benchmarks.measure import Figure, interleaved


def run(rounds: int, scale: float) -> list[Figure]:
    """Open the file and read every value, per round."""
    path = kit.find_model("smollm2-135m")

    def by_kit() -> None:
        with kit.GGUFFile(path) as file:
            _ = [file.metadata[key] for key in file.metadata]

    def by_gguf() -> None:
        reader = gguf.GGUFReader(path)
        _ = [field.contents() for field in reader.fields.values()]

    def opened() -> None:
        kit.GGUFFile(path).close()

    slow = max(1, rounds // 3)
    pair = interleaved({"kit": by_kit, "gguf": by_gguf}, slow)
    return [
        Figure("all metadata of the demo model", pair["kit"], pair["gguf"], "gguf.GGUFReader", 0.1, slow),
        Figure("opening it (s)", interleaved({"open": opened}, rounds)["open"], rounds=rounds),
    ]
