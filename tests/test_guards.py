"""Rules about imports that no single module can keep by itself."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import alphabet
from tiny import write_bundle

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("export", "engines", "configs")
HEAVY = {
    "torch",
    "transformers",
    "optimum",
    "onnx",
    "onnx_ir",
    "gguf",
    "safetensors",
    "ml_dtypes",
    "huggingface_hub",
}
ORT = ("engines/ort/", "engines/concat.py", "export/optimum/child.py")  # who may import it
DOORS = {"specedge/cli/export.py", "specedge/cli/_progress.py"}  # to specedge.export


def sources() -> list[Path]:
    return [path for room in ("specedge", *MAPPED) for path in sorted((ROOT / room).rglob("*.py"))]


def module_name(path: Path) -> str:
    """What a file is imported as."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "specedge" else ("specedge", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import statement, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def breaches(path: Path) -> Iterator[str]:
    where = path.relative_to(ROOT).as_posix()
    for module in imports(path):
        first = module.partition(".")[0]
        if first in MAPPED or first in ("bench", "tools", "tests"):
            yield f"{where} imports {module}: write specedge.{module}, or leave it out"
        if room(path) == "export" and inside(module, "specedge.engines"):
            yield f"{where} imports {module}: export knows no engine"
        if room(path) in ("specedge", "engines"):
            if first in HEAVY:
                yield f"{where} imports {module}: too heavy for the edge"
            if inside(module, "specedge.export") and where not in DOORS:
                yield f"{where} imports {module}: only the export command may"
        if first == "onnxruntime" and not where.startswith(ORT):
            yield f"{where} imports {module}: only {ORT} may"
        if first in ("tensorrt", "tensorrt_rtx", "cuda") and not where.startswith("engines/trt/"):
            yield f"{where} imports {module}: only engines/trt/ may"


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_keeps_the_import_rules(path):
    assert list(breaches(path)) == []


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("export/x.py", "from specedge.engines.base import Engine"),
        ("export/x.py", "import specedge.engines"),
        ("engines/x.py", "from specedge import export"),
        ("engines/x.py", "def f():\n    import onnx"),
        ("engines/x.py", "import onnxruntime"),
        ("engines/x.py", "import tensorrt_rtx"),
        ("engines/x.py", "from cuda.bindings import runtime"),
        ("specedge/x.py", "from specedge.export.pairing import compare"),
        ("specedge/x.py", "from engines import base"),
        ("specedge/x.py", "import bench.demo"),
    ],
)
def test_the_scan_finds_a_breach(tmp_path, monkeypatch, where, line):
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.write_text(line)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert list(breaches(path)) != []


def loaded_after(code: str, *args: str) -> set[str]:
    """Modules that a fresh interpreter has loaded once it ran `code`."""
    report = "\nimport sys, json; print('\\n' + json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", code + report, *args]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_specedge_costs_next_to_nothing():
    loaded = loaded_after("import specedge; specedge.SpecedgeError")
    heavy = HEAVY | {"numpy", "onnxruntime", "tokenizers", "pydantic", "click", "rich", "jinja2"}
    assert loaded & heavy == set()


def test_the_command_line_imports_no_more_than_click_for_help():
    loaded = loaded_after("from specedge.cli import invoke\ninvoke(['-h'])")
    heavy = HEAVY | {"numpy", "onnxruntime", "tokenizers", "pydantic", "rich", "jinja2"}
    assert loaded & heavy == set()


def test_a_run_loads_nothing_of_what_other_commands_need(tmp_path):
    bundle = write_bundle(tmp_path / "abc", rule=alphabet())
    code = "import sys\nfrom specedge.cli import invoke\nassert invoke(sys.argv[1:]) == 0"
    args = ("run", str(bundle), "hello", "--engine", "fake", "--max-tokens", "40")
    loaded = loaded_after(code, *args)
    assert "specedge.loop" in loaded
    assert loaded & (HEAVY | {"rich", "llguidance", "jsonschema"}) == set()
    elsewhere = ("specedge.export", "specedge.gates", "specedge.loadtest", "specedge.report")
    assert [name for name in loaded if any(inside(name, each) for each in elsewhere)] == []


def test_every_module_has_one_identity():
    code = """
import collections, importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
files = collections.defaultdict(list)
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name != "__main__":
        files[file].append(name)
for names in files.values():
    if any(name.startswith("specedge") for name in names):
        assert len(names) == 1, names
"""
    loaded = loaded_after(code, *map(module_name, sources()))
    assert {"specedge.export.pairing", "specedge.engines.fake", "specedge.configs"} <= loaded
    assert loaded & set(MAPPED) == set()


def test_no_module_of_the_tests_came_in_by_a_second_name():
    assert set(MAPPED) & sys.modules.keys() == set()


def test_every_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent for path in sources() if path.name == "__init__.py"}
    found = {module_name(folder / "_.py").rpartition(".")[0] for folder in folders}
    assert set(listed) == found
