"""What is written down agrees with what is there."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import specedge
from specedge.cli import COMMANDS
from specedge.config import load_config
from specedge.configs import shipped

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


ROOMS = "specedge|export|engines|configs|tests|tools|bench|docs"


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_reference_is_current():
    assert (ROOT / "docs" / "cli.md").read_text() == tool("cli_docs").render(), "run: make docs"


def test_the_version_is_written_once_and_agrees():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == specedge.__version__
    assert f"## {specedge.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_config_in_the_readme_loads_and_names_every_key(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    text = block.replace('"..."', f'"{"0" * 64}"')
    (tmp_path / "readme.toml").write_text(text)
    config = load_config(tmp_path / "readme.toml")
    assert config.draft is not None
    fixed = {"lowering", "symmetric", "rounding", "licence_note"}
    for section in ("target", "export", "speculation", "generation"):
        known = type(getattr(config, section)).model_fields.keys()
        missing = known - fixed - tomllib.loads(text)[section].keys()
        assert not missing, f"[{section}] {missing}"


def test_the_readme_lists_every_shipped_config_and_command():
    readme = (ROOT / "README.md").read_text()
    for name in shipped():
        assert f"| `{name}` |" in readme
    for command in COMMANDS:
        assert f"specedge {command}" in readme


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_the_texts_name_exist(path):
    text = path.read_text()
    named = set(re.findall(rf"`((?:{ROOMS})/[\w./]*)`", text))
    named |= set(re.findall(r"\]\((?!http)([\w./-]+)\)", text))
    missing = [n for n in named if not ((ROOT / n).exists() or (path.parent / n).exists())]
    assert missing == []


def test_make_targets_that_the_texts_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    for path in TEXTS:
        for target in re.findall(r"`make ([\w-]+)`", path.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path.name}: make {target}"


@pytest.mark.parametrize("package", ["gates", "loadtest", "canary", "guidance", "report"])
def test_a_package_that_maps_its_modules_names_all_of_them(package):
    folder = ROOT / "specedge" / package
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    named = set(re.findall(r"\w+", said or ""))
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules - named == set()
