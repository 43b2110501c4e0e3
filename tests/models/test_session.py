"""Sessions: runs, what they keep, what patches do, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import kit

IDS = [1, 100, 7, 42, 42, 250, 3, 99]


@pytest.fixture(params=[False, True], ids=["permuted", "flash"])
def either(request, model):
    return model.session(n_ctx=512, flash_attn=request.param)


def test_reset_repeats_exactly(either):
    first = either.run(IDS, keep="blk.1.resid")
    either.run([5, 6, 7])
    either.reset()
    assert either.n_past == 0 and either.tokens == () and either.last is None
    again = either.run(IDS, keep="blk.1.resid")
    assert np.array_equal(first.logits, again.logits)
    assert np.array_equal(first["blk.1.resid"], again["blk.1.resid"])


def test_batches_of_a_long_prompt_equal_one_pass(model):
    ids = [3 + i % 256 for i in range(100)]
    with model.session(n_ctx=128, n_batch=16) as small, model.session(n_ctx=128) as large:
        one = large.run(ids).logits
        assert np.allclose(small.run(ids).logits, one, atol=1e-4)
        small.reset()
        last = small.run(ids, logits="last").logits
        assert last.shape == (1, one.shape[1]) and np.allclose(last[0], one[-1], atol=1e-4)
        small.reset()
        kept = small.run(ids, keep="blk.1.resid")
        assert kept["blk.1.resid"].shape == (100, 64) and np.allclose(kept.logits, one, atol=1e-4)


def test_keeping_changes_no_logits(either):
    plain = either.run(IDS).logits
    either.reset()
    names = [name for name in either.stages if not name.endswith(".scores")]
    assert np.array_equal(either.run(IDS, keep=names).logits, plain)


def test_values_kept_are_copies(session):
    run = session.run(IDS, keep="blk.0.resid")
    before, logits = run["blk.0.resid"].copy(), run.logits.copy()
    session.run([9, 9, 9], keep="blk.0.resid", patch={"embed": lambda value: value * 0})
    session.model.close()
    assert np.array_equal(run["blk.0.resid"], before) and np.array_equal(run["logits"], logits)


def test_patterns_choose_stages_in_the_order_of_the_pass(session):
    run = session.run(IDS, keep=["logits", "blk.*.resid", "embed", "blk.1.attn.[qk]"])
    assert run.names == ("embed", "blk.0.resid", "blk.1.attn.q", "blk.1.attn.k", "blk.1.resid", "logits")
    assert np.array_equal(run["logits"], run.logits)
    assert session.run([5], keep="blk.0.ffn.*").names == tuple(
        f"blk.0.ffn.{part}" for part in ("norm", "gate", "up", "act", "out")
    )


@pytest.mark.parametrize("where", ["keep", "patch"])
def test_an_unknown_stage_is_refused_with_near_names(session, where):
    asked = "blk.1.rezid" if where == "keep" else {"blk.1.rezid": 0}
    with pytest.raises(kit.UnknownStage, match=r"'blk\.1\.rezid'; did you mean blk\.1\.resid"):
        session.run(IDS, **{where: asked})
    assert session.n_past == 0


def test_a_stage_not_kept_is_named(session):
    run = session.run(IDS, keep="blk.0.resid")
    with pytest.raises(kit.UnknownStage, match=r"'blk\.1\.resid' was not kept.*blk\.0\.resid"):
        run["blk.1.resid"]


def in_place(value):
    value *= 0.5


def returned(value):
    return value * 0.5


@pytest.mark.parametrize("patch", [in_place, returned], ids=["in place", "returned"])
def test_a_kept_and_patched_stage_shows_what_the_pass_went_on_with(either, patch):
    plain = either.run(IDS, keep="blk.0.resid")
    either.reset()
    patched = either.run(IDS, keep="blk.0.resid", patch={"blk.0.resid": patch})
    assert np.array_equal(patched["blk.0.resid"], plain["blk.0.resid"] * np.float32(0.5))
    assert np.abs(patched.logits - plain.logits).max() > 0.01


def test_an_array_replaces_a_value(session):
    value = np.random.default_rng(0).standard_normal((len(IDS), 64)).astype(np.float32)
    run = session.run(IDS, keep=["blk.1.resid", "norm"], patch={"blk.1.resid": value})
    weight = session.model.weights["output_norm.weight"].numpy()
    norm = value / np.sqrt((value.astype(np.float64) ** 2).mean(-1, keepdims=True) + session.model.config.eps) * weight
    assert np.array_equal(run["blk.1.resid"], value)
    assert np.allclose(run["norm"], norm, atol=1e-5)


def test_a_glob_patches_every_stage_it_matches(session):
    seen = []
    session.run(IDS, patch={"blk.*.attn.scores": lambda value: seen.append(value.shape)})
    assert seen == [(4, 8, 8)] * 2


def test_a_patch_by_a_later_pattern_wins(session):
    run = session.run(IDS, keep="blk.*.resid", patch={"blk.*.resid": lambda v: v * 0, "blk.1.resid": lambda v: v + 1})
    assert not run["blk.0.resid"].any() and run["blk.1.resid"].any()


def test_uniform_scores_average_the_values(session):
    uniform = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]
    run = session.run(IDS, keep="blk.0.attn.*", patch={"blk.0.attn.scores": np.broadcast_to(uniform, (4, 8, 8))})
    means = run["blk.0.attn.v"].cumsum(0) / np.arange(1, 9)[:, None, None]
    assert np.allclose(run["blk.0.attn.heads"], means.repeat(2, 1), atol=2e-3)


@pytest.mark.parametrize("value", [np.zeros((3, 64)), np.float32(0), lambda value: value[:-1]])
def test_a_patch_of_another_shape_is_refused(session, value):
    with pytest.raises(kit.ShapeError, match=r"blk\.0\.resid.*must be \(8, 64\)"):
        session.run(IDS, patch={"blk.0.resid": value})
    assert session.n_past == 0


@pytest.mark.parametrize("value", ["abc", [[1], [2, 3]], {}, object(), lambda value: "abc", lambda value: object()])
def test_a_patch_that_is_no_numbers_is_refused(session, value):
    with pytest.raises(kit.ArgumentError, match=r"patch of stage 'embed' is .*numbers of shape \(8, 64\)"):
        session.run(IDS, patch={"embed": value})
    assert session.n_past == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_what_a_patch_raises_arrives_and_the_session_is_as_before(either, error):
    before = either.run(IDS[:4])
    expected = either.run(IDS[4:]).logits
    either.reset()
    assert np.array_equal(either.run(IDS[:4]).logits, before.logits)

    def fail(value):
        raise error("from the patch")

    with pytest.raises(error, match="from the patch"):
        either.run(IDS[4:], patch={"blk.0.ffn.out": fail})
    assert either.tokens == tuple(IDS[:4])
    assert np.array_equal(either.run(IDS[4:]).logits, expected)


def test_the_lens_may_be_used_inside_a_patch(session):
    expected = session.run(IDS).logits
    session.reset()
    seen = []
    run = session.run(IDS, patch={"blk.1.resid": lambda value: seen.append(session.model.lens_logits(value))})
    assert np.allclose(seen[0], expected, atol=1e-4)
    assert np.array_equal(run.logits, expected)


def test_nothing_else_may_run_on_the_backend_inside_a_patch(model, session):
    other = model.session(n_ctx=256)
    expected = session.run(IDS).logits
    session.reset()
    ctx = kit.Context(model.backend)
    graph = ctx.graph(kit.ops.silu(ctx.tensor((4,)).set(1)))
    actions = [
        lambda: session.run(IDS),
        lambda: session.steps(IDS),
        lambda: list(session.generate(IDS, max_tokens=1)),
        session.reset,
        session.close,
        graph.compute,
        model.close,
        model.backend.close,
        lambda: other.run(IDS),
        lambda: model.session(n_ctx=256),
    ]
    refused = []

    def misuse(value):
        for action in actions:
            with pytest.raises(kit.BusyError):
                action()
            refused.append(action)

    assert np.array_equal(session.run(IDS, patch={"blk.0.resid": misuse}).logits, expected)
    assert refused == actions
    assert np.array_equal(other.run(IDS).logits, expected)
    assert np.allclose(graph.compute().numpy(), 1 / (1 + np.exp(-1)))


def test_the_run_says_what_it_is(session):
    run = session.run("Hi", keep="blk.0.resid")
    assert run.tokens == session.tokens == (1, 3 + ord("H"), 3 + ord("i"))
    assert run.pieces[1:] == ("H", "i")
    assert run is session.last and run.time_ns > 0
    assert "3 tokens" in repr(run) and "blk.0.resid" in run.text()
    assert run.nbytes == run.logits.nbytes + run["blk.0.resid"].nbytes


def test_the_session_says_what_it_is(session, model):
    assert "0 of 512 tokens" in repr(session) and "permuted" in repr(session)
    session.close()
    assert repr(session) == "Session(closed)"
    model.close()
    assert "closed" in repr(model) and "closed" in repr(model.weights)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no tokens"),
        ([1, 264], "token 264 is not in the vocabulary of 264"),
        ([-1], "token -1 is not in the vocabulary"),
        ([1 << 40], "not in the vocabulary"),
        ([1.5], "whole numbers"),
        ([None], "whole numbers"),
        (None, "whole numbers"),
        (7, "whole numbers"),
        (b"abc", "whole numbers"),
        (["a"], "whole numbers"),
    ],
)
def test_a_prompt_that_is_none_is_refused(session, prompt, message):
    for use in (session.run, session.steps):
        with pytest.raises(kit.ArgumentError, match=message):
            use(prompt)
    assert session.n_past == 0


def test_other_logits_are_refused(session):
    with pytest.raises(kit.ArgumentError, match=r"'first'.*'all' or 'last'"):
        session.run(IDS, logits="first")


def test_a_prompt_longer_than_the_cache_is_refused_with_the_numbers(model):
    with model.session(n_ctx=16) as session:
        session.run(IDS)
        expected = session.run([7]).logits
        session.reset()
        session.run(IDS)
        for use in (session.run, session.steps, session.generate):
            with pytest.raises(kit.CacheFull, match=r"9 tokens do not fit.*n_ctx=16, 8 are used, 8 free"):
                use([5] * 9)
        assert np.array_equal(session.run([7]).logits, expected)


def test_the_cache_can_be_filled_to_the_last_cell(model):
    ids = [3 + i for i in range(16)]
    with model.session(n_ctx=16) as exact, model.session(n_ctx=64) as roomy:
        assert np.allclose(exact.run(ids).logits, roomy.run(ids).logits, atol=1e-5)
        with pytest.raises(kit.CacheFull, match="1 tokens do not fit"):
            exact.run([1])
        exact.reset()
        exact.run(ids)


@pytest.mark.parametrize("size", [0, -1, 1.5, "big", True])
def test_a_size_that_is_none_is_refused(model, size):
    for sizes in ({"n_ctx": size}, {"n_batch": size}):
        with pytest.raises(kit.ArgumentError, match="whole number from 1"):
            model.session(**sizes)


@pytest.mark.parametrize("n_ctx", [1 << 30, 1 << 40, 1 << 70])
def test_a_cache_larger_than_memory_is_refused_with_its_bytes(model, n_ctx):
    before = kit.memory.live()
    with pytest.raises(kit.OutOfMemory, match=r"kv cache|n_ctx") as caught:
        model.session(n_ctx=n_ctx)
    config = model.config
    assert caught.value.nbytes >= 4 * config.n_layer * config.n_embd_kv * n_ctx
    assert kit.memory.live() == before


def test_a_batch_larger_than_memory_is_refused_with_its_bytes(model):
    before = kit.memory.live()
    with pytest.raises(kit.OutOfMemory) as caught:
        model.session(n_ctx=1 << 19, n_batch=1 << 19)
    assert caught.value.nbytes > 1 << 40
    assert kit.memory.live() == before


def test_a_closed_session_refuses(session):
    walk = session.steps(IDS)
    session.close()
    session.close()
    actions = [
        lambda: session.run(IDS),
        lambda: session.steps(IDS),
        lambda: session.generate(IDS),
        session.reset,
        lambda: next(walk),
    ]
    for action in actions:
        with pytest.raises(kit.ClosedError, match=r"closed|ended"):
            action()


def test_a_closed_model_closes_its_sessions_and_refuses(model, session):
    run = session.run(IDS, keep="blk.0.resid")
    model.close()
    model.close()
    assert session.closed
    for action in (model.session, lambda: session.run(IDS), lambda: model.lens_logits(np.zeros((1, 64))), run.lens):
        with pytest.raises(kit.ClosedError, match="closed"):
            action()


def test_a_closed_backend_leaves_a_model_that_can_be_closed(tiny_path):
    backend = kit.Backend(n_threads=1)
    model = kit.load(tiny_path("grouped"), backend=backend)
    session = model.session(n_ctx=64)
    session.run(IDS)
    backend.close()
    with pytest.raises(kit.ClosedError):
        session.run(IDS)
    session.close()
    model.close()


def test_a_model_leaves_the_backend_it_was_given(tiny_path):
    with kit.Backend(n_threads=1) as backend:
        with kit.load(tiny_path("grouped"), backend=backend) as model:
            logits = model.session(n_ctx=64).run(IDS).logits
        assert not backend.closed
        with kit.load(tiny_path("grouped"), backend=backend) as model:
            assert np.array_equal(model.session(n_ctx=64).run(IDS).logits, logits)


def test_nothing_is_allocated_after_the_session_was_opened(model):
    with model.session(n_ctx=300, n_batch=64) as session:

        def buffers() -> dict[str, int]:
            return {r.name: r.nbytes for r in kit.memory.live() if r.kind in ("buffer", "scheduler", "allocator")}

        before = buffers()
        session.run([3 + i % 256 for i in range(250)])
        list(session.generate([5], max_tokens=30, sampler=kit.Sampler(temperature=0)))
        assert buffers() == before
