"""The Python in the documents runs as it stands, page by page; a block marked "# raises X" raises X."""

from __future__ import annotations

import gc
import pathlib
import re

import pytest

import kit

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

pytestmark = pytest.mark.model


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, demo_model_path: pathlib.Path, one_cpu: None) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        code = compile(block, f"{page}: {block.splitlines()[0]}", "exec")
        expected = re.match(r"# raises (\w+)", block)
        if expected:
            with pytest.raises(kit.KitError) as raised:
                exec(code, namespace)
            assert expected[1] in {kind.__name__ for kind in type(raised.value).__mro__}
        else:
            exec(code, namespace)
    namespace.clear()
    gc.collect()
    assert kit.memory.live().text() == "nothing is live"


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if not target.startswith("https://")]
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert missing == []
