"""What the README and the documents tell a reader to do or to open is there and works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bloomery.interface import catalog

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_exists(document: Path) -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(re.search(rf"^{first or second}:", rules, re.MULTILINE) for first, second in named)


def test_the_exact_answer_recipe_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (recipe,) = [block for block in blocks if 'open_gguf("model.gguf")' in block]
    names: dict[str, object] = {}
    recipe = recipe.replace('"model.gguf"', repr(str(catalog.path("demo"))))
    exec(compile(recipe, "README.md", "exec"), names)
    ids, logits = names["ids"], names["logits"]
    assert len(ids) == len(logits) == 5  # type: ignore[arg-type]
    assert sorted(logits, reverse=True) == list(logits)  # type: ignore[call-overload]
