"""Weights that are read, for as long as a block."""

from __future__ import annotations

import pathlib
from typing import Any

import kit
from kit.core.gguf import GGUFFile
from kit.models.weights.weights import Weights


class Closing:
    """Closes the weights at the end of a block."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def __enter__(self) -> Weights:
        return self.weights

    def __exit__(self, *exc: object) -> None:
        self.weights.close()


def read_weights(path: pathlib.Path, backend: kit.Backend, **options: Any) -> Closing:
    return Closing(Weights(GGUFFile(path), backend, use_mmap=False, progress=False, **options))
