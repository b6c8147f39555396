"""The documentation builds: no broken link, no public name left out, and pages can be searched."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

import jaxtribute as jt

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site once, and return where it is."""
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def _public_names() -> set[str]:
    """Return the public names: of the package, and of each module of the API page or below one.

    The sources are read, not imported, as some need libraries that are not installed here.
    """
    left = re.findall(r"^::: (jaxtribute(?:\.[a-z]\w*)*)$", API, re.MULTILINE)
    found: set[str] = set()
    while left:
        module = left.pop()
        names = {f"{module}.{name}" for name in all_of(module)}
        left += [name for name in names - found if _source(name).exists()]
        found |= {module, *names}
    return found


def _source(module: str) -> Path:
    path = ROOT / "src" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def all_of(module: str) -> list[str]:
    """Return what a module has in `__all__`, which may be that of another one."""
    for node in ast.parse(_source(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "__all__":
            package = module.rpartition(".")[0]
            return all_of(resolve_name("." * node.level + (node.module or ""), package))
    raise AssertionError(f"{module} has no __all__")


def test_every_public_name_is_documented(site):
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'id="(jaxtribute[\w.]*)"', page))
    public = _public_names()
    assert {f"jaxtribute.{name}" for name in jt.__all__} <= public
    assert {"jaxtribute.data.experimental.SHARD_HINT", "jaxtribute.keras.DatasetCreator"} <= public
    assert not public - documented
    assert "<blockquote>" not in page  # what an example outside a fence would become


def test_every_page_can_be_found_by_searching(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {
        f"{path.parent.relative_to(site)}/".removeprefix("./") for path in site.rglob("index.html")
    }
    assert found == pages - {"./"} | {""}
    assert any("MirroredStrategy" in entry["title"] for entry in index["docs"])
