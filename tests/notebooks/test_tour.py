"""The tour runs from the first cell to the last in a real kernel, and shows what it says."""

from __future__ import annotations

import pathlib
import time

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode

TOUR = pathlib.Path(__file__).parents[2] / "notebooks" / "00_tour.ipynb"

pytestmark = [pytest.mark.notebook, pytest.mark.model]


@pytest.fixture(scope="module")
def tour(demo_model_path: pathlib.Path, one_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The executed notebook."""
    notebook = nbformat.read(TOUR, as_version=4)
    folder = tmp_path_factory.mktemp("tour")
    started = time.perf_counter()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    notebook.metadata["seconds"] = time.perf_counter() - started
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def cell_with(notebook: NotebookNode, source: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    assert not outputs(notebook)
    assert {cell.get("execution_count") for cell in notebook.cells} == {None}


def test_it_takes_less_than_two_minutes(tour: NotebookNode) -> None:
    assert tour.metadata["seconds"] < 120


def test_no_cell_fails_or_warns(tour: NotebookNode) -> None:
    kinds = [(output.output_type, output.get("name")) for output in outputs(tour)]
    assert not [kind for kind in kinds if kind[0] == "error" or kind[1] == "stderr"]


def test_the_model_says_paris_and_an_edit_changes_that(tour: NotebookNode) -> None:
    assert "-> ' Paris'" in printed(cell_with(tour, "run = session.run(prompt)\nbest"))
    edited = printed(cell_with(tour, "step.commit()"))
    assert "unchanged, the model says ' Paris'; edited, it says" in edited
    assert "same answer as the edit: True" in printed(cell_with(tour, "patch="))
    assert printed(cell_with(tour, 'stop=("\\n",)')).startswith(" Paris")


def test_pictures_have_a_text_and_a_still(tour: NotebookNode) -> None:
    pictures = [output.data for output in outputs(tour) if "image/png" in output.get("data", {})]
    assert len(pictures) == 5
    for picture in pictures:
        assert len(picture["image/png"]) > 10_000
        assert len(picture["text/plain"]) > 100
        assert "data:image/png;base64," in picture["text/html"]


def test_mistakes_are_told_not_raised(tour: NotebookNode) -> None:
    text = "".join(printed(cell) for cell in tour.cells if cell.cell_type == "code")
    for name in ("NotComputedError:", "ShapeError:", "ClosedError:"):
        assert name in text


def test_at_the_end_nothing_is_live(tour: NotebookNode) -> None:
    last = [cell for cell in tour.cells if cell.cell_type == "code"][-1]
    assert last.outputs[-1].data["text/plain"] == "nothing is live"


def test_its_stills_survive_the_export_to_html(tour: NotebookNode) -> None:
    page, _ = HTMLExporter().from_notebook_node(tour)
    assert page.count("data:image/png;base64,") >= 5
    assert "nothing is live" in page
