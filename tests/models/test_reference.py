"""Every stage of a pass against the float64 pass of tests/models/reference.py."""

from __future__ import annotations

import numpy as np
import pytest

import kit

from . import tiny
from .reference import forward

IDS = [1, 100, 7, 42, 42, 250, 3, 99, 180, 12, 5]

# Mean squared error over mean square. Keys, values, queries and weights of attention pass through float16
# (relative rounding 2**-11, squared 2.4e-7); a wrong head, sign or angle gives about 1.
NMSE = 2e-6


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


@pytest.fixture(params=tiny.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def expected(kind):
    return forward(tiny.Tiny(**tiny.KINDS[kind]), IDS)


@pytest.fixture
def loaded(kind, tiny_path):
    with kit.load(tiny_path(kind), n_threads=1) as model:
        yield model


@pytest.mark.parametrize("flash", [False, True], ids=["permuted", "plain on a flash cache"])
def test_every_stage_of_one_batch(loaded, expected, flash):
    session = loaded.session(n_ctx=64, flash_attn=flash)
    run = session.run(IDS, keep="*")
    assert run.names == session.stages == tuple(name for name in session.stages if name in expected)
    assert len(expected) == len(session.stages)
    far = {name: error for name in run.names if (error := nmse(run[name], expected[name])) > NMSE}
    assert not far


def test_every_stage_but_scores_with_flash_attention(loaded, expected):
    session = loaded.session(n_ctx=64, flash_attn=True)
    names = [name for name in session.stages if not name.endswith(".scores")]
    run = session.run(IDS, keep=names)
    far = {name: error for name in names if (error := nmse(run[name], expected[name])) > NMSE}
    assert not far


@pytest.mark.parametrize("flash", [False, True], ids=["permuted", "flash"])
def test_token_by_token_gives_the_rows_of_one_batch(loaded, expected, flash):
    session = loaded.session(n_ctx=64, flash_attn=flash)
    rows = [session.run([token]).logits[0] for token in IDS]
    assert nmse(np.stack(rows), expected["logits"]) < NMSE


@pytest.mark.parametrize("flash", [False, True], ids=["permuted", "flash"])
def test_stepping_gives_every_stage(loaded, expected, flash):
    session = loaded.session(n_ctx=64, flash_attn=flash)
    values = {step.name: step.value for step in session.steps(IDS)}
    far = {name: error for name in values if (error := nmse(values[name], expected[name])) > NMSE}
    assert values.keys() == {name for name in session.stages if not flash or not name.endswith(".scores")}
    assert not far


def test_scores_of_later_tokens_reach_back_over_earlier_ones(session):
    expected = forward(tiny.Tiny(), IDS)["blk.1.attn.scores"]
    session.run(IDS[:6])
    later = session.run(IDS[6:], keep="blk.1.attn.scores")["blk.1.attn.scores"]
    assert nmse(later, expected[:, 6:, :]) < NMSE
    assert np.allclose(later.sum(-1), 1, atol=1e-5)


def test_a_pass_beyond_one_padding_of_the_cache(session):
    ids = [(7 * i) % 256 + 3 for i in range(300)]  # the cache attends 256 cells at a time
    expected = forward(tiny.Tiny(), ids)
    run = session.run(ids, keep=["blk.1.attn.scores", "blk.1.resid"])
    for name in ("blk.1.attn.scores", "blk.1.resid", "logits"):
        assert nmse(run[name], expected[name]) < NMSE, name


def test_output_of_the_last_token_alone(session):
    last = session.run(IDS, logits="last", keep="norm")
    assert last.logits.shape == (1, session.model.config.n_vocab) and last["norm"].shape == (1, 64)
    assert nmse(last.logits, forward(tiny.Tiny(), IDS)["logits"][-1:]) < NMSE
