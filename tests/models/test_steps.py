"""Walking through a pass: what stepping shows, what edits do, how walks end."""

from __future__ import annotations

import numpy as np
import pytest

import kit

IDS = [1, 100, 7, 42, 42, 250, 3, 99]
OTHER = [1, 55, 66, 77]


@pytest.fixture(params=[False, True], ids=["permuted", "flash"])
def either(request, model):
    return model.session(n_ctx=512, flash_attn=request.param)


@pytest.fixture
def expected(either):
    with either.model.session(n_ctx=512, flash_attn=either.attention.kind == "flash") as fresh:
        return fresh.run(IDS).logits


def test_stepping_gives_exactly_the_logits_of_run(either, expected):
    for level in ("stage", "block"):
        either.reset()
        *_, last = either.steps(IDS, level=level)
        assert last.name == "logits" and np.array_equal(last.value, expected)
        assert np.array_equal(either.last.logits, expected)
        assert either.tokens == tuple(IDS) and either.n_past == len(IDS)


def test_stepping_after_earlier_tokens_gives_the_logits_of_run(either):
    either.run(IDS[:5])
    rest = either.run(IDS[5:]).logits
    either.reset()
    either.run(IDS[:5])
    assert np.array_equal(either.steps(IDS[5:]).finish().logits, rest)


def test_every_stage_is_what_run_keeps(session):
    kept = session.run(IDS, keep="*")
    session.reset()
    for step in session.steps(IDS):
        assert step.shape == kept[step.name].shape
        assert np.array_equal(step.value, kept[step.name]), step.name


def test_blocks_are_embedding_residuals_norm_and_logits(session):
    walk = session.steps(IDS, level="block")
    assert [step.name for step in walk] == ["embed", "blk.0.resid", "blk.1.resid", "norm", "logits"]


def test_another_level_is_refused(session):
    with pytest.raises(kit.ArgumentError, match=r"'layer'.*'stage' or 'block'"):
        session.steps(IDS, level="layer")


def test_a_walk_left_half_way_goes_on_later(session):
    expected = session.run(IDS).logits
    session.reset()
    walk = session.steps(IDS)
    for step in walk:
        if step.name == "blk.0.ffn.gate":
            break
    assert session.position == walk.position == "blk.0.ffn.gate" and not walk.finished
    assert session.n_past == 0 and "blk.0.ffn.gate" in repr(session) and "blk.0.ffn.gate" in repr(walk)
    assert next(walk).name == "blk.0.ffn.up"
    assert np.array_equal(walk.finish().logits, expected)
    assert session.position is None and walk.finished and session.n_past == len(IDS)
    with pytest.raises(StopIteration):
        next(walk)


def test_the_lens_at_a_pause_does_not_disturb_the_walk(session):
    expected = session.run(IDS).logits
    session.reset()
    for step in session.steps(IDS):
        if step.name.endswith("resid") or step.name in ("embed", "logits"):
            entries = step.lens(k=3)
            assert [entry.logit for entry in entries] == sorted((entry.logit for entry in entries), reverse=True)
    assert entries[0].id == expected[-1].argmax()
    assert np.array_equal(session.last.logits, expected)


def test_the_lens_of_the_last_residual_is_the_answer(session):
    run = session.run(IDS, keep="blk.1.resid")
    (rows,) = run.lens(k=1)
    assert [row[0].id for row in rows] == run.logits.argmax(1).tolist()
    assert np.allclose([row[0].logit for row in rows], run.logits.max(1), atol=1e-4)


def test_the_lens_refuses_what_is_no_residual(session):
    walk = session.steps(IDS)
    step = next(step for step in walk if step.name == "blk.0.attn.q")
    with pytest.raises(kit.ArgumentError, match=r"blk\.0\.attn\.q.*resid"):
        step.lens()


EDITED = ["embed", "blk.0.attn.q", "blk.0.attn.k", "blk.0.attn.v", "blk.0.attn.scores", "blk.0.attn.heads"]
EDITED += ["blk.0.resid_mid", "blk.0.ffn.gate", "blk.0.ffn.up", "blk.1.ffn.act", "blk.1.ffn.out", "blk.1.resid", "norm"]


@pytest.mark.parametrize("name", EDITED)
def test_an_edit_equals_the_same_patch_in_run(session, name):
    patched = session.run(IDS, patch={name: lambda value: value * 0.5}).logits
    session.reset()
    for step in session.steps(IDS):
        if step.name == name:
            step.value *= 0.5
            step.commit()
    assert np.array_equal(session.last.logits, patched)
    session.reset()
    assert not np.array_equal(session.run(IDS).logits, patched)


def test_edited_logits_are_the_result(session):
    for step in session.steps(IDS):
        if step.name == "logits":
            step.value[-1, 5] = 1000
            step.commit()
    assert session.last.logits[-1].argmax() == 5
    assert session.n_past == len(IDS)


def test_a_value_not_committed_changes_nothing(session):
    expected = session.run(IDS).logits
    session.reset()
    for step in session.steps(IDS):
        if step.name != "logits":
            step.value[:] = 0
    assert np.array_equal(session.last.logits, expected)


def test_a_value_of_another_shape_is_refused(session):
    walk = session.steps(IDS)
    step = next(walk)
    with pytest.raises(kit.ShapeError, match=r"embed.*\(3, 64\).*\(8, 64\)"):
        step.value = np.zeros((3, 64))
    step.value[:] = 1
    step.commit()
    assert np.array_equal(step.value, np.ones((8, 64)))


def test_a_value_nobody_looked_at_is_gone_once_the_walk_moved_on(session):
    walk = session.steps(IDS)
    first, second = next(walk), next(walk)
    with pytest.raises(kit.NotComputedError, match=r"moved on from 'embed'"):
        first.value  # noqa: B018
    kept = second.value
    next(walk)
    assert second.value is kept
    with pytest.raises(kit.NotComputedError, match=r"blk\.0\.attn\.norm"):
        second.commit()


@pytest.mark.parametrize("what", ["run", "steps", "generate", "reset", "close"])
def test_anything_else_ends_the_walk(session, what):
    walk = session.steps(IDS)
    step = next(walk)
    actions = {
        "run": lambda: session.run(OTHER),
        "steps": lambda: session.steps(OTHER),
        "generate": lambda: list(session.generate(OTHER, max_tokens=1)),
        "reset": session.reset,
        "close": session.close,
    }
    actions[what]()
    with pytest.raises(kit.ClosedError, match="walk was ended"):
        next(walk)
    with pytest.raises(kit.NotComputedError):
        step.value  # noqa: B018


def test_an_ended_walk_left_no_tokens(session):
    expected = session.run(OTHER).logits
    session.reset()
    walk = session.steps(IDS)
    next(walk)
    assert np.array_equal(session.run(OTHER).logits, expected)
    assert session.tokens == tuple(OTHER)


def test_a_walk_that_is_dropped_gives_its_memory_back(session):
    for _ in range(5):
        next(session.steps(IDS))
    session.reset()
    assert not [resource for resource in kit.memory.live() if resource.owner == "a walk"]


def test_other_sessions_run_while_a_walk_stands_still(model, session):
    expected = session.run(IDS).logits
    session.reset()
    with model.session(n_ctx=256) as other:
        alone = other.run(OTHER).logits
        walks = [session.steps(IDS), session.model.session(n_ctx=256).steps(IDS)]
        for steps in zip(*walks, strict=True):
            other.reset()
            assert np.array_equal(other.run(OTHER).logits, alone)
            assert steps[0].name == steps[1].name and np.array_equal(steps[0].value, steps[1].value)
    assert np.array_equal(session.last.logits, expected)


def test_a_prompt_longer_than_a_batch_is_one_walk(model):
    ids = [3 + i % 256 for i in range(40)]
    with model.session(n_ctx=64, n_batch=16) as small, model.session(n_ctx=64) as large:
        walked = small.steps(ids).finish().logits
        assert np.allclose(walked, large.run(ids).logits, atol=1e-4)
