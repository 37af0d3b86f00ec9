from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from specedge.bundle import REMEMBER_BYTES, Bundle
from specedge.contract import SCHEMA
from specedge.errors import BundleError
from tests import tiny


def test_a_sound_bundle_opens_and_tells_its_hash_tokenizer_and_template(tiny_bundle):
    bundle = Bundle.open(tiny_bundle)
    raw = (tiny_bundle / "specedge.json").read_bytes()
    assert bundle.hash == hashlib.sha256(raw).hexdigest()
    assert bundle.manifest.name == "tiny"
    assert bundle.tokenizer_json == (tiny_bundle / "tokenizer.json").read_text()
    assert bundle.chat_template == tiny.TEMPLATE


def test_a_bundle_without_a_template_says_none(tmp_path):
    assert Bundle.open(tiny.write_bundle(tmp_path / "b", template=None)).chat_template is None


def test_the_manifest_itself_may_be_named(tiny_bundle):
    assert Bundle.open(tiny_bundle / "specedge.json").path == tiny_bundle


def test_describe_is_json_and_lists_sizes_and_files(tiny_bundle):
    said = json.loads(json.dumps(Bundle.open(tiny_bundle).describe()))
    assert said["name"] == "tiny"
    assert said["hash"] == Bundle.open(tiny_bundle).hash
    assert said["bytes"] == sum(
        path.stat().st_size
        for path in tiny_bundle.rglob("*")
        if path.is_file() and path.name != "specedge.json"
    )
    assert "target/weights.bin" in said["files"]


def test_opening_does_not_write_into_the_bundle(tiny_bundle):
    before = sorted(tiny_bundle.rglob("*"))
    for path in (*before, tiny_bundle):
        path.chmod(0o555 if path.is_dir() else 0o444)
    Bundle.open(tiny_bundle)
    assert sorted(tiny_bundle.rglob("*")) == before
    tiny_bundle.chmod(0o755)
    for path in before:
        path.chmod(0o755)


def test_a_moved_and_a_linked_bundle_open(tiny_bundle, tmp_path):
    moved = tiny_bundle.rename(tmp_path / "moved elsewhere")
    (tmp_path / "link").symlink_to(moved)
    assert Bundle.open(moved).hash == Bundle.open(tmp_path / "link").hash


def test_opened_twice_is_independent(tiny_bundle):
    assert Bundle.open(tiny_bundle) == Bundle.open(tiny_bundle)


def no_folder(folder):
    shutil.rmtree(folder)


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("x")


def no_manifest(folder):
    (folder / "specedge.json").unlink()


def cut_manifest(folder):
    path = folder / "specedge.json"
    path.write_bytes(path.read_bytes()[:200])


def binary_manifest(folder):
    (folder / "specedge.json").write_bytes(b"\xff\xfe\0")


def a_list(folder):
    (folder / "specedge.json").write_text("[1]")


def no_schema(folder):
    (folder / "specedge.json").write_text('{"name": "x"}')


def newer_schema(folder):
    (folder / "specedge.json").write_text('{"schema_version": 3, "unheard": "of"}')


def older_schema(folder):
    tiny.edit_manifest(folder, schema_version=0)


def endless_number(folder):
    (folder / "specedge.json").write_text('{"schema_version": ' + "9" * 5000 + "}")


def negative_size(folder):
    target = json.loads((folder / "specedge.json").read_text())["target"]
    tiny.edit_manifest(folder, target=target | {"kv_heads": -1})


def huge_layers(folder):
    target = json.loads((folder / "specedge.json").read_text())["target"]
    tiny.edit_manifest(folder, target=target | {"layers": 10**9})


def other_contract(folder):
    tiny.edit_manifest(folder, contract=7)


def wrong_type(folder):
    tiny.edit_manifest(folder, name=["x"])


def unknown_key(folder):
    tiny.edit_manifest(folder, surprise=1)


def no_weights(folder):
    (folder / "target/weights.bin").unlink()


def short_weights(folder):
    (folder / "target/weights.bin").write_bytes(b"\0\1")


def long_weights(folder):
    (folder / "target/weights.bin").write_bytes(b"\0\1\2\3\4")


def altered_weights(folder):
    (folder / "target/weights.bin").write_bytes(b"\0\1\2\4")


def altered_tokenizer(folder):
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"hello", b"jello"))


def unlisted_weights(folder):
    files = json.loads((folder / "specedge.json").read_text())["files"]
    del files["target/weights.bin"]
    tiny.edit_manifest(folder, files=files)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_folder, "no such folder"),
        (a_file, "a file; expected the folder"),
        (no_manifest, r"not a bundle, it has no specedge\.json"),
        (cut_manifest, r"not valid JSON, perhaps cut short \(200 bytes"),
        (binary_manifest, "not valid JSON"),
        (a_list, "no schema_version"),
        (no_schema, "no schema_version"),
        (newer_schema, rf"newer specedge \(schema 3, this one reads up to {SCHEMA}\): upgrade"),
        (older_schema, "schema_version: expected 1"),
        (endless_number, "not valid JSON"),
        (negative_size, r"target\.kv_heads: .*greater than or equal to 1"),
        (huge_layers, r"target\.layers: .*less than or equal to 4096"),
        (other_contract, "graphs of contract 7"),
        (wrong_type, "name: "),
        (unknown_key, "surprise: "),
        (no_weights, r"target/weights\.bin: missing .* expected 4 bytes"),
        (short_weights, r"target/weights\.bin: 2 bytes, expected 4; .* cut short"),
        (long_weights, r"target/weights\.bin: 5 bytes, expected 4"),
        (altered_weights, r"target/weights\.bin: altered .* sha256 [0-9a-f]{64}, expected 054ed"),
        (altered_tokenizer, r"tokenizer\.json: altered"),
        (unlisted_weights, r"files does not list target/weights\.bin"),
    ],
)
def test_a_damaged_bundle_is_refused_with_one_line(tiny_bundle, damage, message):
    damage(tiny_bundle)
    with pytest.raises(BundleError, match=message) as caught:
        Bundle.open(tiny_bundle)
    assert "\n" not in str(caught.value)
    assert str(tiny_bundle) in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "C:/x", "a\\..\\x", ""])
def test_a_path_that_leaves_the_folder_is_refused(tiny_bundle, name):
    files = json.loads((tiny_bundle / "specedge.json").read_text())["files"]
    tiny.edit_manifest(tiny_bundle, files=files | {name: {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(BundleError, match="leaves the bundle's folder"):
        Bundle.open(tiny_bundle)


def test_a_graph_path_that_leaves_the_folder_is_refused(tiny_bundle):
    target = json.loads((tiny_bundle / "specedge.json").read_text())["target"]
    tiny.edit_manifest(tiny_bundle, target=target | {"model": "../model.onnx"})
    with pytest.raises(BundleError, match="leaves the bundle's folder"):
        Bundle.open(tiny_bundle)


def test_without_verify_an_altered_file_of_the_right_size_opens(tiny_bundle):
    altered_weights(tiny_bundle)
    Bundle.open(tiny_bundle, verify=False)
    short_weights(tiny_bundle)
    with pytest.raises(BundleError, match="cut short"):
        Bundle.open(tiny_bundle, verify=False)


class Hashing:
    """Counts the files that were read to hash them."""

    def __init__(self, monkeypatch):
        from specedge import bundle

        self.files: list[str] = []
        check = bundle._check_hash

        def counted(file, record):
            self.files.append(file.name)
            check(file, record)

        monkeypatch.setattr(bundle, "_check_hash", counted)

    def of_opening(self, folder) -> list[str]:
        self.files.clear()
        Bundle.open(folder)
        return [name for name in self.files if name == "weights.bin"]


@pytest.fixture
def large_bundle(tiny_bundle, monkeypatch):
    """Its weights are large enough to be remembered, and old enough to be settled."""
    from specedge import bundle

    monkeypatch.setattr(bundle, "SETTLED_NS", -1)
    weights = bytes(REMEMBER_BYTES)
    (tiny_bundle / "target/weights.bin").write_bytes(weights)
    files = json.loads((tiny_bundle / "specedge.json").read_text())["files"]
    files["target/weights.bin"] = tiny.record(weights).model_dump()
    tiny.edit_manifest(tiny_bundle, files=files)
    return tiny_bundle


def test_a_large_file_is_hashed_once_and_then_remembered(large_bundle, private_cache, monkeypatch):
    hashing = Hashing(monkeypatch)
    assert hashing.of_opening(large_bundle) == ["weights.bin"]
    assert hashing.of_opening(large_bundle) == []
    assert len(list(private_cache.iterdir())) == 1


def test_a_file_that_was_touched_moved_or_altered_is_hashed_again(
    large_bundle, private_cache, monkeypatch, tmp_path
):
    hashing = Hashing(monkeypatch)
    hashing.of_opening(large_bundle)
    os.utime(large_bundle / "target/weights.bin", (1, 1))
    assert hashing.of_opening(large_bundle) == ["weights.bin"]
    moved = large_bundle.rename(tmp_path / "moved")
    assert hashing.of_opening(moved) == ["weights.bin"]
    assert hashing.of_opening(moved) == []
    weights = moved / "target/weights.bin"
    kept = weights.stat()
    with weights.open("r+b") as stream:
        stream.write(b"\1")
    os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with pytest.raises(BundleError, match="altered"):
        Bundle.open(moved)


def test_a_file_changed_a_moment_ago_is_not_remembered(large_bundle, private_cache, monkeypatch):
    from specedge import bundle

    monkeypatch.setattr(bundle, "SETTLED_NS", 3600 * 10**9)
    hashing = Hashing(monkeypatch)
    assert hashing.of_opening(large_bundle) == ["weights.bin"]
    assert hashing.of_opening(large_bundle) == ["weights.bin"]


@pytest.mark.parametrize("broken", ["unwritable", "not JSON", "a list"])
def test_a_cache_that_cannot_be_used_only_costs_hashing(
    large_bundle, private_cache, monkeypatch, broken
):
    if broken == "unwritable":
        private_cache.write_text("a file where the folder should be")
    else:
        private_cache.mkdir()
        (private_cache / "verified.json").write_text("{" if broken == "not JSON" else "[]")
    assert Hashing(monkeypatch).of_opening(large_bundle) == ["weights.bin"]
