"""What is no finite number ends with the tokens it came from: no later pass and no other sequence sees it."""

from __future__ import annotations

import numpy as np
import pytest

import kit

BEFORE, SPOILT, AFTER = [1, 5], [9] * 20, [6, 7]


@pytest.fixture(params=[{}, {"flash_attn": True}, {"cache_type": "f32", "n_ubatch": 8}], ids=str)
def either(request, model):
    return model.session(n_ctx=64, **request.param)


@pytest.fixture
def expected(either):
    logits = either.run([*BEFORE, *AFTER]).logits[-2:]
    either.reset()
    return logits


def spoil(session, stage, value):
    session.run(SPOILT, patch={stage: lambda old: np.full_like(old, value)})


@pytest.mark.parametrize(
    ("stage", "value"), [("blk.0.attn.k", np.nan), ("blk.0.attn.v", np.inf), ("blk.0.resid", 1e30)]
)
def test_a_reset_ends_it(either, expected, stage, value):
    spoil(either, stage, value)
    either.run([3])
    either.reset()
    assert np.allclose(either.run([*BEFORE, *AFTER]).logits[-2:], expected, atol=1e-4)


def test_a_patch_that_raises_leaves_none_of_it(either, expected):
    def fail(value):
        raise ZeroDivisionError

    either.run(BEFORE)
    with pytest.raises(ZeroDivisionError):
        either.run(SPOILT, patch={"blk.0.attn.k": lambda old: old * np.nan, "blk.1.resid": fail})
    assert np.allclose(either.run(AFTER).logits, expected, atol=1e-2)
    with either.fork(2) as branches:
        assert all(np.isfinite(run.logits).all() for run in branches.run([[5], [6]]))


def test_an_edit_ends_with_its_walk(either, expected):
    either.run(BEFORE)
    walk = either.steps(SPOILT)
    for step in walk:
        if step.name == "blk.0.attn.v":
            step.value = step.value * np.nan
            step.commit()
        if step.name == "blk.1.attn.v":
            break
    assert np.allclose(either.run(AFTER).logits, expected, atol=1e-2)


def test_weights_that_overflow_the_cache_do_not_outlast_a_reset(tmp_path):
    from . import tiny

    broken = tiny.Tiny(untied=True)
    broken.weights["token_embd.weight"][9] = np.inf
    tiny.write(tmp_path / "broken.gguf", broken)
    with kit.load(tmp_path / "broken.gguf", n_threads=1) as model, model.session(n_ctx=64) as session:
        assert not np.isfinite(session.run(SPOILT, logits="last").logits).any()
        session.reset()
        assert np.isfinite(session.run(BEFORE).logits).all()


def test_what_could_not_be_restored_is_not_saved(session, tmp_path):
    spoil(session, "blk.0.attn.k", np.nan)
    with pytest.raises(kit.StateError, match="no finite numbers; reset"):
        session.save(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []
    session.reset()
    session.run(AFTER)
    session.save(tmp_path / "state")
    session.restore(tmp_path / "state")


def test_only_what_was_freed_is_cleared(session):
    session.run(BEFORE, patch={"blk.0.attn.k": lambda old: old * 2})
    was = session.cache.k[0].numpy()[:2].copy()
    with pytest.raises(kit.ShapeError):
        session.run(SPOILT, patch={"blk.0.attn.k": [1.0]})
    session.run(AFTER)
    assert np.array_equal(session.cache.k[0].numpy()[:2], was)


def test_a_plain_session_is_never_cleared(session, monkeypatch):
    monkeypatch.setattr("kit.models.cache.scrub._clear", lambda *given: pytest.fail("cleared"))
    session.run(BEFORE)
    session.reset()
    session.run(AFTER, keep="blk.0.resid")
