from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import read
from specedge.export.sources.gguf_file import open_gguf
from specedge.export.sources.gguf_header import read_header
from tests import gguf_writing as tiny


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "m.gguf")


def test_reads_what_the_gguf_librarys_own_reader_reads(tmp_path: Path) -> None:
    keys = tiny.metadata() | {"a.list": [1, -2, 3], "a.flag": True, "a.ratio": 0.5, "a.text": "é"}
    kinds = {"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.Q5_1}
    path = tiny.write(tmp_path / "m.gguf", keys=keys, kinds=kinds)
    header = read_header(path)
    reference = gguf.GGUFReader(path)
    own = {name for name in reference.fields if not name.startswith("GGUF.")}
    assert set(header.metadata) == own
    for name in own:
        assert header.metadata[name] == reference.fields[name].contents(), name
    assert list(header.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.kind == tensor.tensor_type
        assert info.offset == tensor.data_offset
        assert info.end - info.offset == tensor.n_bytes


def test_a_file_cut_anywhere_is_one_clear_error(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    first_tensor = min(info.offset for info in read_header(file).tensors.values())
    cut = tmp_path / "cut.gguf"
    ends = [*range(4, first_tensor, 7), *range(first_tensor, len(data), 1009), len(data) - 33]
    for end in ends:
        cut.write_bytes(data[:end])
        with pytest.raises(SourceError, match=r"cut\.gguf: cut short") as caught:
            open_gguf(cut)
        assert "\n" not in str(caught.value)


def test_the_tensor_that_lies_past_the_end_is_named(file: Path) -> None:
    last = max(read_header(file).tensors.values(), key=lambda info: info.end)
    with file.open("r+b") as opened:
        opened.truncate(last.end - 1)
    with pytest.raises(
        SourceError, match=rf"tensor '{last.name}' ends at byte {last.end}, the file"
    ):
        read_header(file)


@pytest.mark.parametrize("data", [b"", b"GG", b"PK\x03\x04 and more", b"\x00" * 64])
def test_a_file_that_is_not_gguf_says_so(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="not a GGUF file"):
        open_gguf(path)


def test_a_file_that_is_not_there_or_is_a_folder_is_one_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(SourceError, match="cannot be read"):
            open_gguf(path)


def test_big_endian_is_refused_by_name(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", big_endian=True)
    with pytest.raises(SourceError, match="big-endian"):
        open_gguf(path)


@pytest.mark.parametrize("version", [0, 1, 4])
def test_an_unknown_version_names_those_that_are_known(version: int, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4:8] = struct.pack("<I", version)
    file.write_bytes(data)
    with pytest.raises(UnsupportedError, match=f"GGUF version {version}; supported: 2, 3"):
        open_gguf(file)


def test_an_unknown_architecture_lists_those_that_are_supported(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", "mamba")
    expected = "architecture 'mamba' is not supported; supported: gemma3, llama, phi3, qwen2, qwen3"
    with pytest.raises(UnsupportedError, match=expected):
        open_gguf(path)


def test_an_unknown_quantisation_type_names_its_tensor(file: Path) -> None:
    data = file.read_bytes()
    name = b"blk.0.attn_norm.weight"
    at = data.index(name) + len(name) + 4 + 8  # dimension count, one dimension
    file.write_bytes(data[:at] + struct.pack("<I", 4000) + data[at + 4 :])
    with pytest.raises(
        UnsupportedError, match=r"'blk\.0\.attn_norm\.weight' has quantisation type 4000"
    ):
        open_gguf(file)


def test_one_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", keys=tiny.metadata() | {"split.count": 3})
    with pytest.raises(UnsupportedError, match="one of 3 parts of a split GGUF"):
        open_gguf(path)


def test_a_tensor_we_do_not_know_is_refused_rather_than_left_out(tmp_path: Path) -> None:
    tensors = tiny.weights()
    tensors["blk.0.attn_sinks.weight"] = tensors["output_norm.weight"]
    path = tiny.write(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.attn_sinks\.weight' is not part of"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("name", "shape", "ours"),
    [
        ("blk.1.ffn_down.weight", (tiny.HIDDEN, tiny.INNER - 32), "mlp.down_proj"),
        ("blk.0.attn_norm.weight", (tiny.HIDDEN // 2,), "input_layernorm"),
        ("blk.0.attn_k.weight", (tiny.HEADS * tiny.DIM, tiny.HIDDEN), "self_attn.k_proj"),
        ("token_embd.weight", (tiny.VOCAB, tiny.HIDDEN + 1), "embed_tokens"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(
    name: str, shape: tuple[int, ...], ours: str, tmp_path: Path
) -> None:
    tensors = tiny.weights("qwen2")
    tensors[name] = tensors["token_embd.weight"].repeat(8).ravel()[: shape[0] * shape[-1]]
    tensors[name] = tensors[name].copy()
    tensors[name] = tensors[name][: shape[0]] if len(shape) == 1 else tensors[name].reshape(shape)
    path = tiny.write(tmp_path / "m.gguf", "qwen2", tensors=tensors)
    shown = ", ".join(map(str, shape))
    with pytest.raises(SourceError, match=rf"{ours}.*shape \[{shown}\], the config implies \["):
        open_gguf(path)


def test_another_sha256_than_the_configs_shows_both(file: Path) -> None:
    import hashlib

    right = hashlib.sha256(file.read_bytes()).hexdigest()
    assert open_gguf(file, sha256=right.upper()).record.sha256 == right
    with pytest.raises(SourceError, match=f"sha256 expected {'0' * 64}, found {right}"):
        open_gguf(file, sha256="0" * 64)


def test_the_record_names_the_file_without_its_folder_and_the_licence(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", keys=tiny.metadata() | {"general.license": "mit"})
    record = open_gguf(path).record
    assert (record.kind, record.reference, record.licence) == ("gguf", "m.gguf", "mit")
    assert "general.license" in str(record.licence_note)
    stated = open_gguf(path, licence="Apache-2.0").record
    assert (stated.licence, stated.licence_note) == ("Apache-2.0", None)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_header_with_any_damage_opens_or_is_a_source_error(
    data: st.DataObject, file: Path, tmp_path: Path
) -> None:
    content = bytearray(file.read_bytes())
    end = min(info.offset for info in read_header(file).tensors.values())
    at = data.draw(st.integers(0, end - 9), label="at")
    word = data.draw(st.binary(min_size=1, max_size=8), label="word")
    content[at : at + len(word)] = word
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    try:
        source = open_gguf(damaged)
        for name in source.tensors.names():
            read(source.tensors, name)
    except SourceError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
