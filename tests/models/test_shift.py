"""Context shift: keys moved to other positions, against rotations by numpy and keys computed where they now are."""

from __future__ import annotations

import numpy as np
import pytest

import kit

IDS = [3 + (7 * i) % 256 for i in range(40)]
GREEDY = kit.Sampler(temperature=0)
KEEP, DISCARD = 4, 10

# Mean squared error over mean square of keys that were rounded to the type once more.
NMSE = {"f32": 1e-9, "f16": 1e-6, "bf16": 3e-5, "q8_0": 2e-4, "q4_0": 2e-2}


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


def keys_of(session: kit.Session, layer: int) -> np.ndarray:
    """The keys of a session's tokens by position (tokens, kv_heads, head_dim)."""
    config = session.model.config
    rows = session.cache.k[layer].numpy()[session.cache.cells.of()]
    return rows.astype(np.float64).reshape(len(rows), -1, config.head_dim)


def rotated(keys: np.ndarray, by: int, base: float) -> np.ndarray:
    """Neighbouring pairs turned by ``by`` positions (Su et al., arXiv:2104.09864)."""
    dim = keys.shape[-1]
    angles = by * base ** (-np.arange(0, dim, 2) / dim)
    pairs = keys[..., 0::2] + 1j * keys[..., 1::2]
    turned = pairs * np.exp(1j * angles)
    out = np.empty_like(keys)
    out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
    return out


@pytest.fixture
def wide(tiny_path):
    """Heads of 32, a whole block of every cache type."""
    with kit.load(tiny_path("wide-heads-untied"), n_threads=1) as model:
        yield model


@pytest.mark.parametrize("flash", [None, True])
@pytest.mark.parametrize("kind", NMSE)
def test_later_keys_of_every_layer_are_turned_back(wide, kind, flash):
    with wide.session(n_ctx=64, n_ubatch=16, cache_type=kind, flash_attn=flash) as session:
        session.run(IDS)
        before = [keys_of(session, layer) for layer in range(2)]
        session.shift(KEEP, DISCARD)
        for layer in range(2):
            found, was = keys_of(session, layer), before[layer]
            assert np.array_equal(found[:KEEP], was[:KEEP])
            expected = rotated(was[KEEP + DISCARD :], -DISCARD, wide.config.rope.base)
            assert nmse(found[KEEP:], expected) < NMSE[kind]


@pytest.mark.parametrize(
    "name", ["grouped", "sizes-per-block", "rope-factors", "rope-scaled", "yarn-betas", "longrope-as-trained"]
)
@pytest.mark.parametrize("flash", [None, True])
def test_keys_of_the_first_layer_are_those_computed_at_the_new_positions(tiny_path, name, flash):
    rest = IDS[:KEEP] + IDS[KEEP + DISCARD :]
    with kit.load(tiny_path(name), n_threads=1) as model:
        with model.session(n_ctx=64, flash_attn=flash) as session:
            session.run(IDS)
            assert session.shift(KEEP, DISCARD) == DISCARD
            assert session.tokens == tuple(rest) and session.n_past == len(rest)
            found = keys_of(session, 0)
            values = session.cache.v[0].numpy()
            order = session.cache.cells.of()
            found_v = values[..., order] if session.cache.permuted else values[order]
        with model.session(n_ctx=64, flash_attn=flash) as session:
            session.run(rest)
            assert nmse(found, keys_of(session, 0)) < NMSE["f16"]
            values = session.cache.v[0].numpy()
            n = len(rest)
            assert np.array_equal(found_v, values[..., :n] if session.cache.permuted else values[:n])


def test_a_model_of_one_layer_goes_on_as_if_nothing_else_had_been(tmp_path):
    from . import tiny

    tiny.write(tmp_path / "one.gguf", tiny.Tiny(n_layer=1))
    with kit.load(tmp_path / "one.gguf", n_threads=1) as model, model.session(n_ctx=64) as session:
        session.run(IDS)
        session.shift(KEEP, DISCARD)
        found = session.run([5, 6, 7]).logits
        session.reset()
        expected = session.run([*IDS[:KEEP], *IDS[KEEP + DISCARD :], 5, 6, 7]).logits[-3:]
        assert nmse(found, expected) < 2e-6


def test_scores_after_a_shift_come_in_the_order_of_the_tokens(model):
    with model.session(n_ctx=64) as session:
        session.run(IDS)
        session.shift(KEEP, DISCARD)
        first = session.run([5, 6, 7], keep="blk.0.attn.scores")["blk.0.attn.scores"]
        assert session.cache.cells.of()[-3:].tolist() == [KEEP, KEEP + 1, KEEP + 2], "holes are used"
        session.reset()
        rest = [*IDS[:KEEP], *IDS[KEEP + DISCARD :]]
        session.run(rest)
        expected = session.run([5, 6, 7], keep="blk.0.attn.scores")["blk.0.attn.scores"]
        assert first.shape == (4, 3, len(rest) + 3)
        assert nmse(first, expected) < 1e-5


def test_stepping_after_a_shift_gives_the_logits_of_running(model):
    logits = []
    for use in ("run", "steps"):
        with model.session(n_ctx=64) as session:
            session.run(IDS)
            session.shift(KEEP, DISCARD)
            run = session.run([5, 6]) if use == "run" else session.steps([5, 6]).finish()
            logits.append(run.logits)
    assert np.array_equal(*logits)


def test_without_numbers_half_of_what_is_behind_the_first_token_goes(session):
    session.run(IDS)
    assert session.shift() == 19
    assert session.tokens == (IDS[0], *IDS[20:])


@pytest.mark.parametrize("numbers", [(-1, 2), (2, -1), (30, 11), (41, 0)])
def test_more_than_there_is_cannot_be_dropped(session, numbers):
    session.run(IDS)
    with pytest.raises(kit.ArgumentError, match=r"the cache holds 40|is -1; it must be a whole number"):
        session.shift(*numbers)
    assert session.tokens == tuple(IDS)


@pytest.mark.parametrize("flash", [None, True])
def test_a_session_that_shifts_generates_beyond_its_cache(model, flash):
    with model.session(n_ctx=32, on_full="shift", n_keep=2, flash_attn=flash) as session:
        made = list(session.generate(IDS[:20], max_tokens=100, sampler=GREEDY))
        assert len(made) == 100 and session.cache.n_used <= 32
        assert session.tokens[:2] == tuple(IDS[:2]) and session.tokens[-1] == made[-1].id
        assert session.n_past == session.cache.cells.end()


def test_a_prompt_that_fits_after_a_shift_is_taken(model):
    with model.session(n_ctx=32, on_full="shift") as session:
        session.run(IDS[:30])
        assert session.run(IDS[:20]).logits.shape[0] == 20
        list(session.generate(IDS[:25], max_tokens=3, sampler=GREEDY))
        with pytest.raises(kit.CacheFull, match="tokens do not fit"):
            session.run(IDS[:32])
        with pytest.raises(kit.CacheFull):
            session.generate(IDS[:32])


def test_a_full_cache_raises_unless_it_was_to_shift(model):
    with model.session(n_ctx=16) as session, pytest.raises(kit.CacheFull):
        list(session.generate(IDS[:10], max_tokens=20, sampler=GREEDY))


@pytest.mark.parametrize(("name", "value"), [("on_full", "grow"), ("n_keep", -1), ("n_keep", 64), ("n_keep", 1.5)])
def test_a_setting_that_is_none_is_refused(model, name, value):
    with pytest.raises(kit.ArgumentError, match=f"{name} is {value!r}"):
        model.session(n_ctx=64, **{name: value})


def test_a_shift_allocates_nothing(model):
    with model.session(n_ctx=64, n_ubatch=16) as session:
        session.run(IDS)
        with kit.Tracker() as memory:
            session.shift(KEEP, DISCARD)
        events = [event for event in memory.report().events if event.action == "alloc" and event.size]
    assert [str(event) for event in events if event.kind != "context" and event.purpose != "metadata"] == []


def test_a_shift_that_fails_leaves_an_empty_session(model, monkeypatch):
    with model.session(n_ctx=64) as session:
        session.run(IDS)

        def fails(graph, watch=None):
            raise kit.GgmlAbort("refused")

        monkeypatch.setattr(model.backend, "compute", fails)
        with pytest.raises(kit.GgmlAbort):
            session.shift(KEEP, DISCARD)
        monkeypatch.undo()
        assert session.tokens == () and session.n_past == session.cache.n_used == 0
        assert session.run(IDS).logits.shape[0] == 40


@pytest.fixture
def windowed(tmp_path):
    """One layer, whose keys know nothing of other tokens, and a window of 8."""
    from . import tiny

    tiny.write(tmp_path / "window.gguf", tiny.Tiny(n_layer=1, window=8))
    with kit.load(tmp_path / "window.gguf", n_threads=1) as model:
        yield model


def goes_on_as_its_tokens_say(session, path) -> None:
    """Its logits are those of its tokens alone, and what it saves can be restored."""
    tokens = session.tokens
    session.save(path)
    with session.model.session(n_ctx=64, cache_type="f32") as other:
        expected = other.run([*tokens, 5, 6]).logits[-2:]
        other.restore(path)
        assert other.tokens == tokens
    assert nmse(session.run([5, 6]).logits, expected) < 1e-9


@pytest.mark.parametrize(
    ("numbers", "left"),
    [((1, 25), IDS[26:30]), ((4, 18), [*IDS[:4], *IDS[22:30]]), ((18, 8), [*IDS[16:18], *IDS[26:30]])],
    ids=["gone", "gone and not seen", "gone in part"],
)
def test_first_tokens_that_left_the_window_are_not_kept_where_they_would_be_seen(windowed, tmp_path, numbers, left):
    with windowed.session(n_ctx=16, cache_type="f32") as session:
        for token in IDS[:30]:
            session.run([token])
        assert session.cache.cells.positions[session.cache.cells.of()][0] == 16
        assert session.shift(*numbers) == 30 - len(left)
        assert session.tokens == tuple(left)
        goes_on_as_its_tokens_say(session, tmp_path / "state")


def test_a_window_that_shifts_by_itself_can_be_saved(windowed, tmp_path):
    with windowed.session(n_ctx=16, cache_type="f32", on_full="shift", n_keep=4) as session:
        for start in range(0, 30, 9):
            session.run(IDS[start : start + 9])
            goes_on_as_its_tokens_say(session, tmp_path / "state")
