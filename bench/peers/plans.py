"""Which engines a run measures: ours, and the peers that --peer names.

    KIND=WHERE:MODEL[:lookup | :draft=MODEL][:k=K]

KIND           WHERE                               MODEL
genai          a Python with onnxruntime-genai     a folder with genai_config.json
llamacpp       a folder with node_modules          a GGUF file
openvino       a Python with openvino-genai        a GGUF file, or a folder with openvino_model.xml
transformers   a Python with transformers, torch   a folder with config.json

Without more a peer decodes plainly. `lookup` drafts from the prompt's n-grams, `draft` with a
second model; K tokens at most, 5 unless given.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peers.process import Plan

HERE = Path(__file__).resolve().parent
USUAL_K = 5
GRAMMAR = "KIND=WHERE:MODEL[:lookup | :draft=MODEL][:k=K]"


@dataclass(frozen=True)
class Kind:
    """A peer's runtime.

    Args:
        label: as tables call it.
        worker: its file here.
        module: what must be importable, or lie in node_modules.
        holds: the file that makes a folder a model; None when only a GGUF file is one.
        gguf, draft_gguf: a GGUF file is a model too, and a draft.
    """

    label: str
    worker: str
    module: str
    holds: str | None
    gguf: bool = False
    draft_gguf: bool = False

    def takes(self, model: Path, *, draft: bool) -> bool:
        if self.holds is not None and (model / self.holds).is_file():
            return True
        gguf = self.draft_gguf if draft else self.gguf
        return gguf and model.suffix == ".gguf" and model.is_file()

    def wants(self, *, draft: bool) -> str:
        forms = [f"a folder with {self.holds}"] if self.holds is not None else []
        forms += ["a GGUF file"] if (self.draft_gguf if draft else self.gguf) else []
        return " or ".join(forms)


KINDS = {
    "genai": Kind("onnxruntime-genai", "genai_worker.py", "onnxruntime_genai", "genai_config.json"),
    "llamacpp": Kind("llama.cpp", "llamacpp_worker.mjs", "node-llama-cpp", None, True, True),
    "openvino": Kind(
        "OpenVINO", "openvino_worker.py", "openvino_genai", "openvino_model.xml", True
    ),
    "transformers": Kind("transformers", "transformers_worker.py", "transformers", "config.json"),
}


def specedge(python: str, name: str, *, exact: bool, **options: Any) -> Plan:
    """A plan of ours; `options` as specedge_worker.py has them."""
    given = json.dumps({**options, "exact": exact})
    mode = {"ngram": "lookup"}.get(options.get("proposer", "ngram"), "draft")
    return Plan(
        name,
        [python, str(HERE / "specedge_worker.py"), given],
        mode=mode if options["k"] else "plain",
        own=True,
        exact=exact,
    )


def peer(described: str, *, threads: int, context: int) -> Plan:
    """The plan of one --peer.

    Raises:
        ValueError: it is not of the grammar, not installed, or its model is not there.
    """
    kind, where, model, options = _read(described)
    draft = options.get("draft")
    mode = "draft" if draft else "lookup" if "lookup" in options else "plain"
    k = _draft_length(described, options.get("k", str(USUAL_K)))
    given: dict[str, Any] = {"model": model, "threads": threads, "context": context, "mode": mode}
    _check_installed(described, kind, where)
    _check_model(described, kind, model, draft=False)
    if draft:
        _check_model(described, kind, draft, draft=True)
        given["draft"] = draft
    if mode != "plain":
        given["k"] = k
    start = where
    if kind.worker.endswith(".mjs"):
        given["modules"] = str(Path(where).resolve())
        start = "node"
    name = kind.label if mode == "plain" else f"{kind.label} {mode} K={k}"
    argv = [start, str(HERE / kind.worker), json.dumps(given)]
    return Plan(name, argv, kind=kind.label, mode=mode)


def peers(described: Sequence[str], *, threads: int, context: int) -> list[Plan]:
    """All of them; those that would share a name have their model's name added.

    Raises:
        ValueError: as `peer`, or one is given twice.
    """
    plans = [peer(each, threads=threads, context=context) for each in described]
    for named in range(2):
        count = Counter(plan.name for plan in plans)
        twice = [plan.name for plan in plans if count[plan.name] > 1]
        if twice and named:
            raise ValueError(f"--peer: {twice[0]} is given twice; leave one out")
        if twice:
            plans = [
                replace(plan, name=f"{plan.name} ({Path(json.loads(plan.argv[-1])['model']).name})")
                if plan.name in twice
                else plan
                for plan in plans
            ]
    return plans


def _read(described: str) -> tuple[Kind, str, str, dict[str, str]]:
    name, _, rest = described.partition("=")
    where, *parts = rest.split(":")
    if name not in KINDS or not where or not parts or not parts[0]:
        raise ValueError(
            f"--peer {described}: expected {GRAMMAR} with KIND one of {', '.join(KINDS)}; "
            "see bench/peers/README.md"
        )
    options = {key: value for key, _, value in (part.partition("=") for part in parts[1:])}
    unknown = options.keys() - {"lookup", "draft", "k"}
    if unknown or len(options) < len(parts) - 1 or {"lookup", "draft"} <= options.keys():
        raise ValueError(f"--peer {described}: expected {GRAMMAR}, found {':'.join(parts[1:])!r}")
    if options.get("lookup") or options.get("draft") == "":
        raise ValueError(f"--peer {described}: expected lookup, or draft=MODEL; K is given by k=K")
    return KINDS[name], where, parts[0], options


def _draft_length(described: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 16:
        raise ValueError(f"--peer {described}: expected k=1 to k=16, found k={text}")
    return int(text)


def _check_installed(described: str, kind: Kind, where: str) -> None:
    if kind.worker.endswith(".mjs"):
        found = (Path(where) / "node_modules" / kind.module).is_dir()
        found = found and shutil.which("node") is not None
    else:
        python = shutil.which(where)
        look = f"import importlib.util as u, sys; sys.exit(u.find_spec({kind.module!r}) is None)"
        found = python is not None and subprocess.run([python, "-c", look]).returncode == 0
    if not found:
        raise ValueError(
            f"--peer {described}: {kind.module} is not installed at {where}; "
            "bench/peers/README.md tells how, or leave this peer out"
        )


def _check_model(described: str, kind: Kind, model: str, *, draft: bool) -> None:
    if not kind.takes(Path(model), draft=draft):
        what = "draft" if draft else "model"
        raise ValueError(
            f"--peer {described}: expected a {what} that is {kind.wants(draft=draft)}, "
            f"found none at {model}; see bench/peers/README.md"
        )
