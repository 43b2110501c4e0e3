"""Tiny models against transformers on the same weights: logits in tests/models/data/transformers_logits.npz.

They were made by tests/models/data/make_transformers_logits.py, in float32. kit is held to them, and so is the
float64 pass that the other tests go by.
"""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import kit

from . import tiny
from .reference import forward
from .test_reference import IDS

LOGITS = dict(np.load(pathlib.Path(__file__).parent / "data" / "transformers_logits.npz"))
EVERY = 8


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found[:, ::EVERY] - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("flash", [False, True], ids=["permuted", "flash"])
@pytest.mark.parametrize("kind", LOGITS)
def test_logits_are_those_of_transformers(tiny_path, kind, flash):
    with kit.load(tiny_path(kind), n_threads=1) as model:
        run = model.session(n_ctx=64, flash_attn=flash).run(IDS)
    assert error(run.logits, LOGITS[kind]) < 2e-3


@pytest.mark.parametrize("kind", LOGITS)
def test_the_float64_pass_is_transformers(kind):
    model = tiny.Tiny(**tiny.KINDS[kind])
    assert error(forward(model, IDS)["logits"], LOGITS[kind]) < 2e-5
