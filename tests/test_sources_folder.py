from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import read
from specedge.export.sources.folder import open_folder

HIDDEN, ROWS = 8, 12
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "intermediate_size": 6,
    "vocab_size": ROWS,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}


def arrays(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        "model.embed_tokens.weight": (ROWS, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, 6),
        "model.norm.weight": (HIDDEN,),
    }
    return {key: rng.standard_normal(shape, dtype=np.float32) for key, shape in shapes.items()}


def tokenizer(*, bos: bool = False) -> Tokenizer:
    made = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-model"
    path.mkdir()
    write_json(path / "config.json", CONFIG)
    save_file(arrays(), path / "model.safetensors")
    tokenizer().save(str(path / "tokenizer.json"))
    return path


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def test_a_folder_opens_with_config_weights_and_tokenizer(folder: Path) -> None:
    write_json(folder / "generation_config.json", {"temperature": 0.5})
    source = open_folder(folder, licence="MIT")
    assert source.config["tie_word_embeddings"] is True  # no lm_head in the file, no word in config
    assert source.generation == {"temperature": 0.5}
    assert source.tensors.names() == sorted(arrays())
    for name, value in arrays().items():
        assert source.tensors.shape(name) == value.shape
        np.testing.assert_array_equal(read(source.tensors, name), value)
    record = source.record
    assert (record.kind, record.reference, record.licence) == ("folder", "tiny-model", "MIT")
    assert record.sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_of_every_dtype_equal_a_slice_of_the_whole(
    dtype: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {name: value.astype(dtype) for name, value in arrays().items()}
    save_file(values, folder / "model.safetensors")
    source = open_folder(folder)
    monkeypatch.setattr("specedge.export.sources.safetensors_map.PIECE_BYTES", 3 * 4 * HIDDEN)
    for name, value in values.items():
        for start, stop in ((0, len(value)), (0, 1), (2, 2), (1, len(value) - 1)):
            got = source.tensors.rows(name, start, stop)
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, value[start:stop].astype(np.float32))


def shard(folder: Path) -> dict[str, str]:
    """Split model.safetensors in two with an index; returns the index's map."""
    values = arrays()
    (folder / "model.safetensors").unlink()
    names = list(values)
    files = {
        "model-00001-of-00002.safetensors": names[:2],
        "model-00002-of-00002.safetensors": names[2:],
    }
    for file, own in files.items():
        save_file({name: values[name] for name in own}, folder / file)
    found = {name: file for file, own in files.items() for name in own}
    write_json(folder / "model.safetensors.index.json", {"weight_map": found})
    return found


def test_shards_read_as_one_file_and_are_summed_in_order(folder: Path) -> None:
    files = sorted(set(shard(folder).values()))
    source = open_folder(folder)
    for name, value in arrays().items():
        np.testing.assert_array_equal(read(source.tensors, name), value)
    joined = b"".join((folder / file).read_bytes() for file in files)
    assert source.record.sha256 == hashlib.sha256(joined).hexdigest()


def test_a_shard_that_is_absent_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SourceError, match=r"shard 'model-00002-of-00002.safetensors' is named in"):
        open_folder(folder)


def test_a_shard_outside_the_folder_is_refused(folder: Path) -> None:
    found = shard(folder)
    for name in ("../elsewhere.safetensors", "/etc/passwd", "..\\other.safetensors"):
        write_json(folder / "model.safetensors.index.json", {"weight_map": found | {"x": name}})
        with pytest.raises(SourceError, match="lies outside the folder"):
            open_folder(folder)


def test_a_weights_file_cut_anywhere_is_one_error(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for end in (0, 5, 8, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(SourceError, match=r"model\.safetensors: .*cut short"):
            open_folder(folder)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "header is not JSON"),
        (b"[" * 100_000, "header is not JSON"),
        (
            b'{"t": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}',
            "'t' has a malformed header entry",
        ),
        (b"[]", "not a JSON object"),
        (b'{"t": {"dtype": "F32"}}', "'t' has a malformed header entry"),
        (b'{"t": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}', r"F32 \[3\] needs 12"),
        (b'{"t": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}', r"F32 \[-2\] needs"),
        (b'{"t": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}', "cut short"),
    ],
)
def test_a_damaged_header_is_one_error(header: bytes, message: str, folder: Path) -> None:
    data = struct.pack("<Q", len(header)) + header + bytes(64)
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(SourceError, match=message):
        open_folder(folder)


def test_a_dtype_we_do_not_read_is_refused_by_tensor(folder: Path) -> None:
    values = arrays()
    values["model.norm.weight"] = values["model.norm.weight"].astype(ml_dtypes.float8_e4m3fn)
    save_file(values, folder / "model.safetensors")
    source = open_folder(folder)
    with pytest.raises(UnsupportedError, match=r"'model\.norm\.weight' is F8_E4M3; supported: F32"):
        read(source.tensors, "model.norm.weight")


def test_a_missing_tensor_is_named_with_the_nearest(folder: Path) -> None:
    source = open_folder(folder)
    with pytest.raises(SourceError, match=r"no tensor 'model.norm.weights'; the nearest is 'model"):
        source.tensors.shape("model.norm.weights")
    with pytest.raises(SourceError, match=r"no tensor 'zzz'$"):
        source.tensors.rows("zzz", 0, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_value_that_is_not_finite_names_tensor_and_row(
    value: float, dtype: Any, folder: Path
) -> None:
    values = arrays()
    values["model.embed_tokens.weight"][7, 3] = value
    save_file(
        {name: array.astype(dtype) for name, array in values.items()}, folder / "model.safetensors"
    )
    source = open_folder(folder)
    source.tensors.rows("model.embed_tokens.weight", 0, 7)
    word = "NaN" if np.isnan(value) else "infinity"
    with pytest.raises(SourceError, match=rf"'model\.embed_tokens\.weight' has {word} in row 7;"):
        source.tensors.rows("model.embed_tokens.weight", 5, 9)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    values = arrays()
    values["model.layers.0.mlp.down_proj.weight"] = np.zeros((HIDDEN, 5), dtype=np.float32)
    save_file(values, folder / "model.safetensors")
    with pytest.raises(
        SourceError, match=r"down_proj.weight' has shape \[8, 5\].*implies \[8, 6\]"
    ):
        open_folder(folder)


def test_another_sha256_than_the_configs_is_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match=f"sha256 expected {'1' * 64}, found "):
        open_folder(folder, sha256="1" * 64)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, r"no config\.json"),
        ("config.json", "{oops", r"config\.json: not JSON"),
        pytest.param("config.json", "[" * 100_000, r"config\.json: not JSON", id="deep"),
        ("config.json", "[1]", "expected a JSON object, found list"),
        ("generation_config.json", "{", r"generation_config\.json: not JSON"),
        ("tokenizer.json", None, r"no tokenizer\.json"),
        ("tokenizer.json", "{}", r"tokenizer\.json: not a tokenizer"),
        ("model.safetensors", None, r"no model\.safetensors and no model\.safetensors\.index"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    name: str, content: str | None, message: str, folder: Path
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(SourceError, match=message):
        open_folder(folder)


def test_forms_that_are_not_read_are_named(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(UnsupportedError, match=r"tokenizer\.model only"):
        open_folder(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match=r"pickle \(pytorch_model\.bin\)"):
        open_folder(folder)
    write_json(folder / "config.json", CONFIG | {"quantization_config": {"quant_method": "awq"}})
    with pytest.raises(UnsupportedError, match=r"already quantised \('awq'\)"):
        open_folder(folder)


def test_ids_come_from_all_the_files_that_name_them(folder: Path) -> None:
    write_json(folder / "generation_config.json", {"eos_token_id": [4, 2], "pad_token_id": 3})
    files = open_folder(folder).tokenizer
    assert (files.bos_id, files.eos_ids, files.pad_id) == (1, [4, 2], 3)
    assert files.vocab == 5
    write_json(folder / "tokenizer_config.json", {"bos_token": {"content": "a"}, "pad_token": "b"})
    files = open_folder(folder).tokenizer
    assert (files.bos_id, files.pad_id) == (3, 4)


def test_an_eos_that_only_the_tokenizer_names_is_used(folder: Path) -> None:
    write_json(folder / "config.json", {k: v for k, v in CONFIG.items() if k != "eos_token_id"})
    write_json(folder / "tokenizer_config.json", {"eos_token": "</s>"})
    assert open_folder(folder).tokenizer.eos_ids == [2]


def test_whether_bos_is_added_is_found_by_encoding(folder: Path) -> None:
    assert open_folder(folder).tokenizer.adds_bos is False
    tokenizer(bos=True).save(str(folder / "tokenizer.json"))
    assert open_folder(folder).tokenizer.adds_bos is True


def test_the_chat_template_is_found_in_each_of_its_places(folder: Path) -> None:
    assert open_folder(folder).tokenizer.chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": named})
    assert open_folder(folder).tokenizer.chat_template == "D"
    write_json(folder / "tokenizer_config.json", {"chat_template": "S"})
    assert open_folder(folder).tokenizer.chat_template == "S"
    (folder / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert open_folder(folder).tokenizer.chat_template == "J"


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_checkpoint_is_unwrapped(prefix: str, folder: Path) -> None:
    text = {k: v for k, v in CONFIG.items() if k not in ("eos_token_id", "bos_token_id")}
    outer = {"model_type": "gemma3", "eos_token_id": [2, 4], "vision_config": {}}
    write_json(
        folder / "config.json", outer | {"text_config": text | {"model_type": "gemma3_text"}}
    )
    strip = "model." if prefix.startswith("model.") else ""
    values = {prefix + name.removeprefix(strip): value for name, value in arrays().items()}
    save_file(values | {"vision_tower.x": np.zeros(2, np.float32)}, folder / "model.safetensors")
    source = open_folder(folder)
    assert source.config["model_type"] == "gemma3_text"
    assert source.config["eos_token_id"] == source.tokenizer.eos_ids == [2, 4]
    assert set(source.tensors.names()) == set(arrays())
    for name, value in arrays().items():
        np.testing.assert_array_equal(read(source.tensors, name), value)
