"""Tiny random checkpoints as real bundles, each built once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specedge.config import Config
from specedge.contract import MANIFEST, GraphSpec, Manifest
from specedge.export import calibration
from specedge.export.builder import build
from tiny_models import make_checkpoint


def config_for(target: Path, draft: Path | None = None, **given: Any) -> Config:
    """A config over checkpoint folders.

    Args:
        target, draft: folders.
        given: "precision" and "draft_precision"; anything else is a key of [export].
    """
    said: dict[str, Any] = {
        "name": "tiny",
        "target": {"source": str(target), "precision": given.pop("precision", "fp32")},
    }
    precision = given.pop("draft_precision", "int4")
    if draft is not None:
        said["draft"] = {"source": str(draft), "precision": precision}
    said["export"] = given
    return Config.model_validate(said)


@contextmanager
def quick_rounding() -> Iterator[None]:
    """The exporter learns and measures its rounding on a few hundred tokens, not on thousands."""
    with pytest.MonkeyPatch.context() as patch:
        for text in ("TEXT", "PRACTICE"):
            patch.setattr(calibration, text, getattr(calibration, text)[:400])
        yield


def read_manifest(bundle: Path) -> Manifest:
    return Manifest.model_validate_json((bundle / MANIFEST).read_bytes())


def read_spec(bundle: Path, role: str = "target") -> GraphSpec:
    return GraphSpec.model_validate(json.loads((bundle / MANIFEST).read_bytes())[role])


class TinyExports:
    """Checkpoints and bundles under one folder, by what they were made from."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def checkpoint(self, family: str, seed: int = 0, **overrides: Any) -> Path:
        folder = self.root / "-".join(map(str, (family, seed, *sorted(overrides.items()))))
        if not folder.exists():
            make_checkpoint(family, folder, seed=seed, **overrides)
        return folder

    def bundle(self, target: Path, draft: Path | None = None, **given: Any) -> Path:
        """As `config_for`; the same arguments give the same folder."""
        parts = (target.name, draft and draft.name, *sorted(given.items()))
        folder = self.root / "bundles" / "-".join(map(str, parts))
        if not folder.exists():
            with quick_rounding():
                build(config_for(target, draft, **given), folder)
        return folder
