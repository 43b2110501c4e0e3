"""The attention lab: its figures' order, its results against float64; never its times."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

import kit
from kit.cli import main
from kit.models.attention_lab import LabShape, attention_lab

SMALL = LabShape(n_head=8, n_head_kv=2, head_dim=32, n_kv=64, n_tokens=3)


@pytest.fixture(scope="module")
def usual():
    with kit.Backend(n_threads=1) as backend:
        return attention_lab(LabShape(), backend, n_repeats=1)


def test_fewer_copies_need_less_memory_and_fewer_nodes(usual):
    assert [row.name for row in usual.rows] == ["three copies", "one copy", "permuted", "flash"]
    assert [row.n_copies for row in usual.rows] == [4, 2, 1, 0]  # one of them puts the result in order
    for more, less in zip(usual.rows, usual.rows[1:], strict=False):
        assert more.compute_nbytes > less.compute_nbytes and more.n_nodes > less.n_nodes


def test_one_token_over_4096_cells_needs_the_bytes_of_its_copies(usual):
    """8 kv heads of 64 in f16: 4 MiB a copy; 32 heads' scores in f32: 0.5 MiB, as measured apart from kit."""
    expected = [8.53, 4.53, 0.53, 0.03]
    found = [row.compute_nbytes / 2**20 for row in usual.rows]
    assert all(abs(a - b) < 0.05 for a, b in zip(found, expected, strict=True)), found


@pytest.mark.parametrize("shape", [SMALL, LabShape(), LabShape(6, 6, 16, 33, 33), LabShape(4, 1, 8, 5, 1)], ids=str)
def test_every_way_gives_the_result_of_the_definition(shape):
    with kit.Backend(n_threads=1) as backend:
        report = attention_lab(shape, backend, n_repeats=1)
    *products, flash = report.rows
    assert all(row.nmse < 1e-6 for row in products), report  # keys, values and scores pass through f16
    assert flash.nmse < 1e-3, report  # its sum over all cells is kept in f16


def test_the_shape_can_be_a_models(model):
    assert LabShape.of(model.config, 128) == LabShape(4, 2, 16, 128, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_kv": 0}, "n_kv is 0"),
        ({"head_dim": 1.5}, "head_dim is 1.5"),
        ({"n_head": 9}, "9, which 2 kv heads do not divide"),
        ({"n_tokens": 65}, "n_tokens is 65"),
        ({"n_kv": 1 << 24}, "more than the lab takes"),
    ],
)
def test_a_shape_that_is_none_is_refused(change, message):
    with pytest.raises(kit.ArgumentError, match=message):
        dataclasses.replace(SMALL, **change)


def test_nothing_stays_allocated():
    before = kit.memory.live()
    attention_lab(SMALL, n_repeats=1)
    assert kit.memory.live() == before


def test_the_command_prints_the_table_and_writes_the_page(tmp_path, tiny_path):
    page = tmp_path / "lab.html"
    arguments = ["bench", "--attention", str(tiny_path("grouped")), "--n-kv", "64", "-t", "1", "--html", str(page)]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    assert "1 token over 64 cells, 4/2 heads of 16" in shown.output and "three copies" in shown.output
    assert "data:image/png" in page.read_text() and "<td" in page.read_text()
    told = CliRunner().invoke(main, ["bench", "--attention", "--n-kv", "8", "-t", "1", "--json"])
    assert json.loads(told.stdout)["shape"]["n_head"] == 32
    assert CliRunner().invoke(main, ["bench"]).exit_code == 2


def test_the_report_is_text_and_data():
    report = attention_lab(SMALL, n_repeats=2)
    assert "3 tokens over 64 cells, 8/2 heads of 32" in str(report) and "flash" in str(report)
    assert json.loads(json.dumps(report.data()))["rows"][0]["name"] == "three copies"
