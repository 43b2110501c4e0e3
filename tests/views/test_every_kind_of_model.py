"""The whole demo and the pictures on models with experts, and with sizes of their own per block."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import kit
from kit.views import AttentionView, RunView, StageTable
from kit.views.demo import run_demo
from kit.views.demo_page import DemoPage
from tests.models import tiny

IDS = [1, 100, 7, 42, 250]
KINDS = ["experts", "sizes-per-block"]


@pytest.fixture(scope="module", params=KINDS)
def path(request, tmp_path_factory):
    target = tmp_path_factory.mktemp("kinds") / "model.gguf"
    tiny.write(target, tiny.Tiny(**tiny.KINDS[request.param]))
    return target


def test_the_demo_tells_its_tour(path):
    out = Console(file=io.StringIO(), width=120)
    demo = run_demo("Hi there", path, out, threads=1)
    assert not demo.left
    assert "blk.1" in out.file.getvalue() and "blk.1.ffn.up" in DemoPage(demo).html()


def test_pictures_draw_every_block(path):
    with kit.load(path, n_threads=1) as model, model.session(n_ctx=64) as session:
        table = StageTable.of(session.steps(IDS))
        assert [row.name for row in table.rows] == list(session.stages)
        session.reset()
        run = session.run(IDS, keep=["blk.*.resid", "blk.*.attn.scores"])
        maps = [AttentionView.of(run, block) for block in range(model.config.n_layer)]
        assert [view.n_heads for view in maps] == [layer.n_head for layer in model.config.layers]
        assert all(view.text() for view in (table, *maps, RunView.of(run)))
        assert table.png().startswith(b"\x89PNG") and maps[-1].png().startswith(b"\x89PNG")
