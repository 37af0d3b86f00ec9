"""A copy of a bundle whose draft model knows nothing: its packed weights are random bytes.

    python bench/random_draft.py bundles/smollm2-selfdraft

Scales and zero points stay, so logits stay finite and every call costs what it did; what it drafts
is right about as often as a guess. The copy lies in `build/bench/` (`--into`), is named after the
bundle's hash and the seed, and is used again when it is there. Files that do not change are linked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from specedge.bundle import Bundle
from specedge.contract import MANIFEST
from specedge.errors import BundleError, SpecedgeError

WORK = Path(__file__).resolve().parent.parent / "build" / "bench"
Span = tuple[int, int]  # offset, bytes


def linked_copy(bundle: Bundle, folder: Path) -> Path:
    """The bundle's files in `folder`, hard-linked where the file system can; no records.

    The manifest comes last, so that a copy that has one is whole. What is there already stays.
    """
    for name in bundle.manifest.files:
        link(bundle.path / name, folder / name)
    if not (folder / MANIFEST).exists():
        shutil.copyfile(bundle.path / MANIFEST, folder / MANIFEST)
    return folder


def link(file: Path, there: Path) -> None:
    """Not a symbolic link: a runtime may refuse weights that lie outside the graph's folder."""
    if there.exists():
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), there)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, there)


def packed_weights(model: Path) -> Iterator[Span]:
    """Where in the weights file the packed int4 weights of a graph lie.

    Args:
        model: `model.onnx`; its weights file is not read.
    """
    graph = onnx.load(model, load_external_data=False).graph
    for tensor in graph.initializer:
        if tensor.data_type != onnx.TensorProto.UINT8 or tensor.name.endswith(".zero_points"):
            continue
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        said = {entry.key: entry.value for entry in tensor.external_data}
        yield int(said.get("offset", 0)), int(said["length"])


def scramble(weights: Path, spans: list[Span], seed: int) -> str:
    """Overwrite these parts with random bytes; returns the file's sha256."""
    rng = np.random.default_rng(seed)
    with weights.open("r+b") as file:
        for offset, length in spans:
            file.seek(offset)
            file.write(rng.bytes(length))
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def random_draft(path: Path, into: Path = WORK, seed: int = 0) -> Path:
    """Make the copy, or find it; returns its folder.

    Raises:
        BundleError: the bundle has no draft, or one without packed int4 weights.
    """
    bundle = Bundle.open(path, verify=False)
    draft = bundle.manifest.draft
    if draft is None:
        raise BundleError(f"{path}: it has no draft model whose weights could be made random")
    folder = into / f"{bundle.manifest.name}-random-{bundle.hash[:12]}-{seed}"
    if (folder / MANIFEST).exists():
        return folder
    spans = list(packed_weights(bundle.path / draft.model))
    if not spans:
        raise BundleError(
            f"{bundle.path / draft.model}: no packed int4 weights; export the draft as int4"
        )
    for name in bundle.manifest.files:
        if name != draft.weights:
            link(bundle.path / name, folder / name)
    weights = folder / draft.weights
    shutil.copyfile(bundle.path / draft.weights, weights)
    said = json.loads((bundle.path / MANIFEST).read_bytes())
    said["name"] += "-random-draft"
    said["files"][draft.weights]["sha256"] = scramble(weights, spans, seed)
    (folder / MANIFEST).write_text(json.dumps(said, indent=1), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--into", type=Path, default=WORK, help="folder for the copy")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = random_draft(given.bundle, given.into, given.seed)
    Bundle.open(folder)
    print(folder)


if __name__ == "__main__":
    try:
        main()
    except SpecedgeError as error:
        sys.exit(f"error: {error}")
