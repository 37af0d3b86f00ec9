"""What `import specedge`, and a whole request, may load: a device at the edge has little else."""

from __future__ import annotations

import subprocess
import sys

import specedge
from specedge import errors

HEAVY = (
    "torch",
    "transformers",
    "optimum",
    "onnx",
    "onnx_ir",
    "gguf",
    "safetensors",
    "specedge.export",
)


def loaded_after(code: str) -> set[str]:
    """Names in sys.modules of a fresh interpreter that ran `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n' + ' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_specedge_loads_almost_nothing():
    loaded = loaded_after("import specedge")
    assert not loaded & {*HEAVY, "onnxruntime", "numpy", "pydantic", "tokenizers", "jinja2"}
    assert not {name for name in loaded if name.startswith("specedge.")} - {"specedge.errors"}


def test_a_request_loads_nothing_that_only_an_export_needs(tiny_bundle):
    loaded = loaded_after(
        "import specedge\n"
        f"model = specedge.load({str(tiny_bundle)!r}, engine='fake')\n"
        "model.generate([{'role': 'user', 'content': 'hi'}], max_tokens=20)\n"
        "model.close()"
    )
    assert not loaded & {*HEAVY, "onnxruntime"}
    assert "specedge.loop" in loaded


def test_the_exported_names_are_these():
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SpecedgeError)
    }
    surface = {"Bundle", "Chat", "Event", "Generation", "Model", "Result", "load", "ShapeError"}
    assert set(specedge.__all__) == surface | tree
    for name in specedge.__all__:
        assert getattr(specedge, name).__name__ == name
    assert set(specedge.__all__) <= set(dir(specedge))
