"""What each picture says."""

from __future__ import annotations

import numpy as np
import pytest

import kit
from kit.models.session.run import Run
from kit.views import AttentionView, GrowthView, LensGrid, PurposeBars, RunView, StageTable, paint, view
from kit.views.run_view import NextTokens
from kit.views.tokens import columns, line_text, pad, shorten, token_text


def test_lens_grid_has_a_row_per_block_and_a_column_per_token(run: Run) -> None:
    grid = LensGrid.of(run)
    assert grid.blocks == ("blk.0.resid", "blk.1.resid", "blk.2.resid")
    assert [len(row) for row in grid.cells] == [4, 4, 4]
    assert [cell.probability for cell in grid.cells[0]] == [0.1, 0.2, 0.3, 0.4]


def test_lens_grid_shows_the_last_tokens_of_a_long_run() -> None:
    cell = kit.views.lens_grid.LensCell("x", 0.5)
    grid = LensGrid(("t",) * 40, ("blk.0.resid",), ((cell,) * 40,))
    assert grid.n_hidden == 24
    assert grid.size()[0] < 16
    assert len(grid.png()) > 5_000


def test_a_run_without_residuals_has_no_lens(run: Run) -> None:
    bare = Run(run.tokens, run.logits, {}, 1, run.pieces)
    with pytest.raises(kit.UnknownStage, match=r"keep=\['blk"):
        LensGrid.of(bare)
    with pytest.raises(kit.UnknownStage, match=r"blk\.1\.attn\.scores"):
        AttentionView.of(bare, 1)


def test_next_tokens_are_the_softmax_of_the_last_row(run: Run) -> None:
    row = run.logits[-1].astype(float)
    shares = np.exp(row) / np.exp(row).sum()
    guesses = NextTokens.of(run).guesses
    assert guesses[0].text == f"#{row.argmax()}"
    assert [g.probability for g in guesses] == pytest.approx(sorted(shares, reverse=True)[:5])


def test_the_view_of_a_run_shows_lens_and_attention(run: Run) -> None:
    shown = view(run)
    assert [type(part) for part in shown.parts] == [LensGrid, AttentionView, AttentionView, AttentionView]
    assert isinstance(run.view(), RunView)
    assert shown.n_hidden == 0


def test_attention_names_what_the_last_token_looks_at() -> None:
    scores = np.zeros((1, 3, 3), np.float32)
    scores[0, -1] = (0.1, 0.7, 0.2)
    text = AttentionView("blk.0.attn.scores", ("a", "b", "c"), scores).text()
    assert text.splitlines()[-1].split() == ["head", "0", "b", "70%", "c", "20%", "a", "10%"]


def test_attention_over_an_earlier_part_names_those_keys_by_position() -> None:
    scores = np.full((2, 2, 5), 0.2, np.float32)
    drawn = AttentionView("blk.0.attn.scores", ("a", "b"), scores)
    assert drawn.keys() == ("@0", "@1", "@2", "a", "b")
    assert len(drawn.png()) > 5_000


def test_blocks_fold_the_stages_and_keep_their_time(stage_table: StageTable) -> None:
    blocks = stage_table.blocks()
    assert [block.name for block in blocks] == ["embed", "blk.0", "blk.1", "blk.2", "logits"]
    assert sum(block.time_ns() for block in blocks) == stage_table.time_ns
    assert blocks[1].time_ns("attn") == 20_000
    assert blocks[2].last.name == "blk.1.resid"


def test_the_table_has_every_stage(stage_table: StageTable) -> None:
    html = stage_table.table()
    assert all(row.name in html for row in stage_table.rows)
    assert len(stage_table.text().splitlines()) == 1 + len(stage_table.rows)


def test_bars_sum_up_by_purpose_largest_first(bars: PurposeBars) -> None:
    assert bars.bars[0].purpose == "weights"
    assert bars.bars[0].nbytes == 3 << 20
    assert bars.nbytes == (3 << 20) + (1 << 20) + 512


def test_growth_counts_the_pools_of_a_real_context(backend: kit.Backend) -> None:
    with kit.Context(backend, name="growing", slots=16) as context:
        shown: list[GrowthView] = []
        grown = GrowthView.watch(context, lambda i: context.tensor((2,), "f32"), 100, each=shown.append)
        assert [view.n_pools[-1] for view in shown] == [*range(2, context.n_pools + 1), context.n_pools]
        assert shown[-1] == grown
        assert (grown.n_pools[-1], grown.held[-1]) == (context.n_pools, context.metadata_nbytes)
    assert grown.n_tensors[:3] == (0, 16, 17)
    assert grown.n_pools[:3] == (1, 1, 2)
    assert grown.n_tensors[-1] == 100


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (" Paris", "␣Paris"),
        ("\n\n", "↵↵"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("x" * 99, "x" * 23 + "…"),
    ],
)
def test_token_texts_are_readable_and_harmless(raw: str, shown: str) -> None:
    assert token_text(raw) == shown


def test_running_text_keeps_only_line_ends_and_tabs() -> None:
    assert line_text("a\n\tb\r\x07\u2028c") == "a\n\tb\\r\\x07\\u2028c"


def test_columns_are_those_of_a_terminal() -> None:
    assert columns("日本") == 4
    assert columns("e\u0301") == 1
    assert shorten("日本語", 4) == "日…"
    assert pad("日本語", 4) == "日… "


def test_a_word_is_cut_to_the_room_it_has() -> None:
    assert paint.fit("word", 8, 2) == "word"
    cut = paint.fit("a very long word indeed", 8, 0.5)
    assert cut.endswith("…")
    assert paint.text_width(cut, 8) <= 0.5


def test_characters_the_font_lacks_are_replaced() -> None:
    assert paint.drawable("a日b") == "a□b"


def test_ink_can_be_read_on_every_shade() -> None:
    """Contrast as WCAG 2.1 defines it: 4.5 for text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for share in np.linspace(0, 1, 51):
        fill, ink = (luminance(colour) for colour in paint.shade(float(share)))
        assert (max(fill, ink) + 0.05) / (min(fill, ink) + 0.05) >= 4.5
