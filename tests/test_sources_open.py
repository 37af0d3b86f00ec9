from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from specedge.errors import SourceError
from specedge.export.checkpoint import Checkpoint, TokenizerFiles
from specedge.export.sources import hub, open_source
from tests import gguf_writing as tiny


def test_a_relative_path_starts_at_the_base_and_then_at_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, here = tmp_path / "configs", tmp_path / "here"
    for folder in (base, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    keys = tiny.metadata() | {"general.license": "one"}
    tiny.write(base / "m.gguf", keys=keys)
    tiny.write(here / "m.gguf")
    tiny.write(here / "only-here.gguf")
    assert open_source("m.gguf", base=base).record.licence == "one"
    assert open_source("only-here.gguf", base=base).record.reference == "only-here.gguf"
    assert open_source(str(here / "m.gguf"), base=base).record.licence is None


def test_what_is_neither_there_nor_of_a_known_form_says_what_forms_there_are(
    tmp_path: Path,
) -> None:
    for reference in ("nowhere", "some/folder/too/deep", "a/b.gguf", "./x/y/z"):
        with pytest.raises(SourceError, match=r"no such folder or file .*package:NAME==VERSION"):
            open_source(reference, base=tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"a checkpoint folder or a \.gguf file"):
        open_source("model.onnx", base=tmp_path)


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json; expected a transformers checkpoint"):
        open_source(".", base=tmp_path)


# --- the hub


def test_without_the_extra_one_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for reference in ("hub:owner/name", "owner/name"):
        with pytest.raises(SourceError, match=r"pip install 'specedge\[hub\]'"):
            open_source(reference)


@pytest.mark.parametrize(
    "failure",
    [
        LocalEntryNotFoundError("Cannot find the snapshot\nand more lines"),
        ConnectionError("Offline mode is enabled"),
        OSError(28, "No space left on device"),
        HFValidationError("Repo id must be"),
    ],
)
def test_a_hub_that_cannot_serve_is_one_line(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(SourceError, match="hub:owner/name: ") as caught:
        open_source("hub:owner/name")
    assert "\n" not in str(caught.value)


def test_a_fetched_snapshot_opens_as_a_folder_under_its_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def fetch(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(tmp_path)

    files = TokenizerFiles("{}", None, None, [], None, False, 1)
    inner = tiny.write(tmp_path / "m.gguf")
    opened = open_source(str(inner))

    def open_folder(path: Path, **_: Any) -> Checkpoint:
        assert path == tmp_path
        return Checkpoint({}, opened.tensors, files, opened.record)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setattr(hub, "open_folder", open_folder)
    record = open_source("owner/name@v1.0").record
    assert (record.kind, record.reference) == ("hub", "hub:owner/name@v1.0")
    assert (asked["repository"], asked["revision"]) == ("owner/name", "v1.0")
    assert "model*.safetensors" in asked["allow_patterns"]
    assert not any(pattern.endswith(".bin") for pattern in asked["allow_patterns"])
