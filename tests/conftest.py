"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests import tiny

if TYPE_CHECKING:
    from tiny_exports import TinyExports

# A busy machine is no failure: time is bounded by pytest-timeout.
hypothesis.settings.register_profile("specedge", deadline=None)
hypothesis.settings.load_profile("specedge")


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder instead of the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECEDGE_CACHE", str(folder))
    return folder


@pytest.fixture
def tiny_bundle(tmp_path: Path) -> Path:
    """A bundle on the fake engine; see `tests/tiny.py`."""
    return tiny.write_bundle(tmp_path / "tiny")


@pytest.fixture(scope="session")
def tiny_exports(tmp_path_factory: pytest.TempPathFactory) -> TinyExports:
    """Real bundles of tiny random models; see `tests/tiny_exports.py`."""
    from tiny_exports import TinyExports  # not above: it loads the exporter

    return TinyExports(tmp_path_factory.mktemp("tiny-exports"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2 in int4, with lookup; see `tests/real.py`."""
    from tests import real

    return real.bundle("smollm2")


@pytest.fixture(scope="session")
def selfdraft() -> Path:
    """SmolLM2 in full precision with its own int4 copy as the draft."""
    from tests import real

    return real.bundle("smollm2-selfdraft")
