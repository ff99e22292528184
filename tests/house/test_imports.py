"""The house's one direction: who may import whom, rooms named after what they hold, and every room in the wheel."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT = {
    "interface": {"interface"},
    "reference": {"interface", "reference"},
    "accelerated": {"interface", "accelerated"},
    "server": {"interface", "server"},
    "conformance": {"interface", "conformance"},
}
NO_ROOM = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
MODULES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Every module name an import statement of the tree names, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that the direction can be read"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden(package: str, source: str) -> set[str]:
    """The packages of this project that `source`, a module of `package`, must not import but does."""
    found = set()
    for name in imported_modules(ast.parse(source)):
        parts = name.split(".")
        if parts[0] in {"tools", "tests"}:
            found.add(parts[0])
        if parts[0] == "bloomery" and len(parts) > 1 and parts[1] not in MAY_IMPORT[package]:
            found.add(parts[1])
        if parts[0] in MAY_IMPORT:
            found.add(f"{parts[0]} without its bloomery name")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    assert not forbidden(package, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("package", "source", "found"),
    [
        ("reference", "from bloomery.accelerated import engine", {"accelerated"}),
        ("interface", "def late():\n    import bloomery.server.app", {"server"}),
        ("server", "from bloomery import conformance", {"conformance"}),
        ("conformance", "from tools import tiny_models", {"tools"}),
        ("server", "from interface import spec", {"interface without its bloomery name"}),
        ("server", "from bloomery.interface import spec\nimport numpy", set()),
    ],
)
def test_the_rule_finds_a_planted_import(package: str, source: str, found: set[str]) -> None:
    assert forbidden(package, source) == found


def test_layer_programs_look_inside_no_array() -> None:
    for path in (ROOT / "interface" / "layers").glob("*.py"):
        names = set(imported_modules(ast.parse(path.read_text(encoding="utf-8"))))
        assert not {"numpy", "cupy", "scipy"} & {name.split(".")[0] for name in names}, path


def test_no_room_without_a_name() -> None:
    assert not [path for path in MODULES if path.name in NO_ROOM]


def test_every_package_is_in_the_distribution() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    present = {
        "bloomery." + ".".join(path.parent.relative_to(ROOT).parts) for path in MODULES if path.name == "__init__.py"
    }
    assert listed == present
