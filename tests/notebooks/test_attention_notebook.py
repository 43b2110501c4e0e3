"""The notebook on attention and the cache runs from the first cell to the last, and finds what it says."""

from __future__ import annotations

import pathlib
import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "04_attention_and_cache.ipynb"

pytestmark = [pytest.mark.notebook, pytest.mark.model]


@pytest.fixture(scope="module")
def executed(demo_model_path: pathlib.Path, one_cpu: None) -> NotebookNode:
    """The executed notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook: NotebookNode, source: str) -> str:
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown(notebook: NotebookNode, source: str) -> NotebookNode:
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)
    return next(output.data for output in cell.outputs if "data" in output)


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not outputs(notebook)
    assert {cell.get("execution_count") for cell in notebook.cells} == {None}


def test_no_cell_fails_or_warns(executed: NotebookNode) -> None:
    kinds = [(output.output_type, output.get("name")) for output in outputs(executed)]
    assert not [kind for kind in kinds if kind[0] == "error" or kind[1] == "stderr"]


def test_the_cache_holds_the_keys_the_stage_showed(executed: NotebookNode) -> None:
    assert "23,040 bytes a token" in printed(executed, "cache = session.cache")
    difference, largest = map(float, re.findall(r"[\d.]+\d", printed(executed, "rows = cache.k[0]")))
    assert difference <= largest * 2**-11


def test_heads_look_where_it_is_said(executed: NotebookNode) -> None:
    share = re.findall(r"(\d+)% on average", printed(executed, "previous = max"))
    assert int(share[0]) > 50
    best = re.findall(r"(\d+)% on ' Bruno'", printed(executed, "induction ="))
    assert len(best) == 5 and int(best[0]) > 30


def test_both_implementations_are_named_and_the_lab_orders_them(executed: NotebookNode) -> None:
    text = printed(executed, "print(flash.attention)")
    assert "permuted attention (the default" in text and "flash attention (asked for" in text
    lab = shown(executed, "attention_lab(LabShape")
    assert "data:image/png;base64," in lab["text/html"] and "three copies" in lab["text/plain"]


def test_smaller_types_take_fewer_bytes_and_the_smallest_errs_most(executed: NotebookNode) -> None:
    rows = re.findall(
        r"^(\w+) +([\d,]+) bytes a token(?:, error ([\d.e+-]+))?$", printed(executed, "def logits_with"), re.M
    )
    assert [(kind, nbytes) for kind, nbytes, _ in rows] == [
        ("f32", "46,080"),
        ("f16", "23,040"),
        ("bf16", "23,040"),
        ("q8_0", "12,240"),
        ("q4_0", "6,480"),
    ]
    errors = {kind: float(error) for kind, _, error in rows[1:]}
    assert errors["q4_0"] > 3 * max(errors["f16"], errors["bf16"], errors["q8_0"])


def test_shifted_keys_are_those_numpy_turned(executed: NotebookNode) -> None:
    text = printed(executed, "session.shift(")
    difference, largest = map(float, re.findall(r"[\d.]+\d", text)[:2])
    assert difference <= largest * 2**-10
    assert "'Anna and the lamp to Quentin." in text
    assert "80 tokens said in a cache of 48" in printed(executed, "on_full=")


def test_branches_share_their_prefix_and_know_their_capitals(executed: NotebookNode) -> None:
    text = printed(executed, "session.fork(3)")
    assert all(city in text for city in ("Paris", "Rome", "Tokyo"))
    assert "3 cells shared + 6 of their own = 9; apart they would take 15" in text
    assert "The capital of Italy is Rome" in printed(executed, "branches.keep(1)")


def test_at_the_end_nothing_is_live(executed: NotebookNode) -> None:
    assert shown(executed, "model.close()")["text/plain"] == "nothing is live"
