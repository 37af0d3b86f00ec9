"""Bundles of SmolLM2 from the shipped configs, for tests marked `model`.

They lie in bundles/, where `make test` puts them, and are made again by the rule of the Makefile:
when a config or the exporter is newer. SPECEDGE_TEST_BUNDLES names another folder, whose bundles
are taken as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from specedge.config import load_config
from specedge.configs import find
from specedge.contract import MANIFEST
from specedge.export.builder import build
from specedge.export.sources import open_source
from specedge.export.sources.cache import cache_folder, cached
from specedge.progress import Silent

ROOT = Path(__file__).resolve().parent.parent
BUNDLES = ("smollm2", "smollm2-selfdraft")

PROMPTS = {
    "chat": "Explain in two sentences why the sky is blue.",
    "code edit": """```python
def total(prices, rate):
    result = 0
    for price in prices:
        result = result + price * (1 + rate)
    return result
```
Repeat this function with one change: rename `result` to `amount`.""",
    "repetition": "Count with me: one two three four one two three four one two three four one two",
}


def bundle(name: str) -> Path:
    """The bundle of a shipped config, exported first where need be."""
    chosen = os.environ.get("SPECEDGE_TEST_BUNDLES")
    folder = Path(chosen or ROOT / "bundles").absolute() / name
    manifest = folder / MANIFEST
    if not manifest.exists() or (not chosen and manifest.stat().st_mtime < _newest(name)):
        build(load_config(name), folder, force=True)
    return folder


def _newest(name: str) -> float:
    """When what makes the bundle was last changed."""
    sources = [*(ROOT / "export").rglob("*.py"), find(name)]
    sources += [ROOT / "specedge" / "contract.py", ROOT / "specedge" / "config.py"]
    return max(path.stat().st_mtime for path in sources)


def gguf() -> Path:
    """The GGUF file that both bundles were made from, out of the cache; fetched if absent."""
    source = load_config(BUNDLES[0]).target
    open_source(source.source, sha256=source.sha256).tensors.close()
    kept = cached(cache_folder(), source.source, Silent())
    assert kept is not None, "the source was opened and is not in the cache"
    return kept.path


def command_line(*args: str | Path, **given: object) -> subprocess.Popen[str]:
    """`specedge` with these arguments, in a process of its own; stdout and stderr are pipes."""
    code = "from specedge.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **(pipes | given))  # type: ignore[call-overload]
