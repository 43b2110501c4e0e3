"""The notebook on quantization runs from the first cell to the last in a real kernel, and its claims hold."""

from __future__ import annotations

import pathlib
import re
import time

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "05_quantization.ipynb"

pytestmark = [pytest.mark.notebook, pytest.mark.model]


@pytest.fixture(scope="module")
def executed(demo_model_path: pathlib.Path, one_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The executed notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("quantization")
    started = time.perf_counter()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    notebook.metadata["seconds"] = time.perf_counter() - started
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook: NotebookNode, source: str) -> str:
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not outputs(notebook)
    assert {cell.get("execution_count") for cell in notebook.cells} == {None}


def test_it_takes_less_than_four_minutes_on_one_busy_cpu(executed: NotebookNode) -> None:
    assert executed.metadata["seconds"] < 240


def test_no_cell_fails_or_warns(executed: NotebookNode) -> None:
    kinds = [(output.output_type, output.get("name")) for output in outputs(executed)]
    assert not [kind for kind in kinds if kind[0] == "error" or kind[1] == "stderr"]


def test_four_pictures_and_the_table(executed: NotebookNode) -> None:
    pictures = [output.data["image/png"] for output in outputs(executed) if "image/png" in output.get("data", {})]
    assert len(pictures) == 4 and all(len(picture) > 5_000 for picture in pictures)
    table = next(output.data["text/plain"] for output in outputs(executed) if "ffn_down" in str(output.get("data")))
    assert re.search(r"blk\.\*\.ffn_down\.weight +30 +\(576, 1536\) +f16 +q4_K", table)
    assert "rows of 576 are no whole blocks of 256 (q4_K)" in table


def test_fewer_bits_diverge_more_and_the_control_only_by_its_activations(executed: NotebookNode) -> None:
    text = printed(executed, "def divergence")
    found = {name: float(kl) for name, kl in re.findall(r"^(\w+) .*divergence ([\d.]+)", text, re.MULTILINE)}
    assert found["q4_0"] > 2 * found["q4_K"] > 4 * found["q8_0"]
    assert found["q4_1"] < 2 * found["q8_0"]


def test_the_first_block_brings_in_a_good_part_of_the_error(executed: NotebookNode) -> None:
    rows = re.findall(r"first block ([\d.]+) +last block ([\d.]+)", printed(executed, "grown ="))
    assert len(rows) == 4 and all(float(last) / 8 < float(first) < float(last) for first, last in rows)


def test_attention_makes_more_error_than_the_feed_forward_part(executed: NotebookNode) -> None:
    text = printed(executed, "def fresh")
    for line in text.splitlines():
        stages = {name: float(value) for name, value in re.findall(r"([a-z]+\.[a-z]+) ([\d.]+)", line)}
        assert stages["attn.heads"] > stages["attn.v"] > stages["attn.q"]
        assert stages["attn.out"] > stages["ffn.out"]


def test_at_the_end_nothing_is_live(executed: NotebookNode) -> None:
    last = [cell for cell in executed.cells if cell.cell_type == "code"][-1]
    assert last.outputs[-1].data["text/plain"] == "nothing is live"
