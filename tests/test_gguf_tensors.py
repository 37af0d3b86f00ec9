from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import Checkpoint, read
from specedge.export.sources import reading
from specedge.export.sources.gguf_file import open_gguf
from specedge.export.sources.gguf_header import TensorInfo, read_header
from specedge.export.sources.gguf_tensors import GgufMap, interleaved_rows
from tests import gguf_writing as tiny

Q = gguf.GGMLQuantizationType
DEQUANTISABLE = [
    Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K,
    Q.Q6_K, Q.TQ1_0, Q.TQ2_0, Q.MXFP4, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ1_S,
    Q.IQ1_M, Q.IQ4_NL, Q.IQ4_XS,
]  # fmt: skip


def opened(path: Path) -> Checkpoint:
    return open_gguf(path)


def theirs(name: str) -> str:
    """Checkpoint name of a GGUF name, spelled out once more."""
    parts = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    *block, stem, kind = name.split(".")
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{parts[stem]}.{kind}"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "phi3", "gemma3"])
def test_every_tensor_comes_back_as_the_checkpoint_had_it(
    architecture: str, tmp_path: Path
) -> None:
    extra = {"gemma3.attention.sliding_window": 8} if architecture == "gemma3" else {}
    keys = tiny.metadata(architecture) | extra
    source = opened(tiny.write(tmp_path / "m.gguf", architecture, keys=keys))
    expected = tiny.weights(architecture)
    special = {"ffn_up": "gate_up_proj"} if architecture == "phi3" else {}
    for name, value in expected.items():
        ours = theirs(name)
        if architecture == "gemma3" and ".ffn_norm." in name:
            ours = ours.replace("post_attention_layernorm", "pre_feedforward_layernorm")
        if special and ".ffn_up." in name:
            ours = ours.replace("up_proj", "gate_up_proj")
        assert source.tensors.shape(ours) == value.shape
        got = read(source.tensors, ours)
        # Gemma's plus one and minus one round in float32.
        np.testing.assert_allclose(got, value, rtol=0, atol=3e-7 if extra else 0)
    assert len(source.tensors.names()) == len(expected)


@pytest.mark.parametrize("dim", [2, 4, 64, 128])
def test_interleaved_order_is_undone_for_any_range(dim: int) -> None:
    heads = 3
    rows = np.arange(heads * dim)
    stored = rows.reshape(heads, 2, dim // 2).swapaxes(1, 2).reshape(-1)  # the converter's formula
    np.testing.assert_array_equal(stored[interleaved_rows(0, len(rows), dim)], rows)
    for start, stop in ((1, 2), (dim - 1, dim + 1), (dim // 2, 2 * dim), (5 % dim, len(rows))):
        np.testing.assert_array_equal(stored[interleaved_rows(start, stop, dim)], rows[start:stop])


def test_a_bias_of_q_is_put_back_in_order_too(tmp_path: Path) -> None:
    tensors = tiny.weights()
    bias = np.arange(tiny.HEADS * tiny.DIM, dtype=np.float32)
    tensors["blk.0.attn_q.bias"] = bias
    source = opened(tiny.write(tmp_path / "m.gguf", tensors=tensors))
    name = "model.layers.0.self_attn.q_proj.bias"
    np.testing.assert_array_equal(read(source.tensors, name), bias)
    np.testing.assert_array_equal(source.tensors.rows(name, 3, 9), bias[3:9])
    assert source.config["attention_bias"] is True


def quantised_map(path: Path, kind: Q, rows: int, seed: int) -> tuple[GgufMap, np.ndarray]:
    """A map over one tensor of random valid packed bytes, and gguf's own values for them."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    width = max(2 * block, 256) // block * block
    rng = np.random.default_rng(seed)
    try:
        values = rng.standard_normal((rows, width), dtype=np.float32)
        packed = gguf.quantize(values, kind).view(np.uint8).reshape(rows, -1)
    except NotImplementedError:
        # gguf cannot quantise to this type: any bytes are valid, but a scale may be NaN.
        packed = rng.integers(0, 256, (rows, width // block * size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            bad = ~np.isfinite(gguf.dequantize(packed, kind)).all(axis=1)
        packed[bad] = 0
    with np.errstate(all="ignore"):
        whole = np.asarray(gguf.dequantize(packed, kind), dtype=np.float32).reshape(rows, width)
    path.write_bytes(packed.tobytes())
    info = TensorInfo("output.weight", kind, (rows, width), 0, packed.shape[1])
    from specedge.export.sources.gguf_header import GgufHeader

    header = GgufHeader({"general.architecture": "qwen2"}, {"output.weight": info})
    return GgufMap(path, header, {"head_dim": 16}), whole


@pytest.mark.parametrize("kind", DEQUANTISABLE, ids=lambda kind: kind.name)
def test_rows_of_every_type_equal_a_slice_of_the_whole_as_gguf_reads_it(
    kind: Q, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, whole = quantised_map(tmp_path / "t.bin", kind, rows=37, seed=kind.value)
    assert len(np.unique(whole)) > 2
    np.testing.assert_array_equal(read(tensors, "lm_head.weight"), whole)
    # Pieces of three rows, so that ranges begin and end inside and across pieces.
    piece = 3 * 4 * whole.shape[1]
    monkeypatch.setattr("specedge.export.sources.gguf_tensors.PIECE_BYTES", piece)
    for start, stop in ((0, 37), (0, 1), (36, 37), (5, 5), (4, 23)):
        got = tensors.rows("lm_head.weight", start, stop)
        assert got.dtype == np.float32
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, whole[start:stop])


@pytest.mark.parametrize(
    "kind", [Q.Q8_0, Q.Q4_1, Q.Q5_0, Q.F16, Q.BF16], ids=lambda kind: kind.name
)
def test_q_rows_are_reordered_before_they_are_dequantised(kind: Q, tmp_path: Path) -> None:
    names = ("blk.0.attn_q.weight", "blk.0.attn_k.weight")
    path = tiny.write(tmp_path / "m.gguf", kinds=dict.fromkeys(names, kind))
    source = opened(path)
    for name in names:
        value = tiny.weights()[name]
        # Quantised row by row, so quantising in the checkpoint's order gives the same rows.
        expected = gguf.dequantize(gguf.quantize(value, kind), kind)
        ours = theirs(name)
        np.testing.assert_array_equal(read(source.tensors, ours), expected)
        for start, stop in ((0, 1), (7, 9), (15, 31)):
            np.testing.assert_array_equal(
                source.tensors.rows(ours, start, stop), expected[start:stop]
            )


def test_a_missing_tensor_is_named_with_the_nearest(tmp_path: Path) -> None:
    source = opened(tiny.write(tmp_path / "m.gguf"))
    with pytest.raises(
        SourceError, match=r"no tensor 'model.layers.0.self_attn.q_pro.weight'.*q_proj"
    ):
        source.tensors.shape("model.layers.0.self_attn.q_pro.weight")
    with pytest.raises(SourceError, match="no tensor"):
        source.tensors.rows("lm_head.weight", 0, 1)


def test_a_range_outside_the_tensor_is_the_callers_fault(tmp_path: Path) -> None:
    source = opened(tiny.write(tmp_path / "m.gguf"))
    for start, stop in ((-1, 2), (0, tiny.VOCAB + 1), (3, 2)):
        with pytest.raises(ValueError, match="rows"):
            source.tensors.rows("model.embed_tokens.weight", start, stop)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_value_that_is_not_finite_is_named_by_tensor_and_row(
    value: float, word: str, tmp_path: Path
) -> None:
    tensors = tiny.weights("qwen2")
    tensors["blk.1.ffn_up.weight"][[29, 77], 5] = value
    tensors["blk.0.attn_norm.weight"][11] = value
    source = opened(tiny.write(tmp_path / "m.gguf", "qwen2", tensors=tensors))
    name = "model.layers.1.mlp.up_proj.weight"
    assert source.tensors.rows(name, 0, 29).shape == (29, tiny.HIDDEN)
    with pytest.raises(SourceError, match=rf"'{name}' has {word} in row 29"):
        source.tensors.rows(name, 20, 90)
    with pytest.raises(SourceError, match=rf"input_layernorm.weight' has {word} in row 11"):
        source.tensors.rows("model.layers.0.input_layernorm.weight", 0, 1)


def test_a_damaged_scale_of_a_quantised_block_is_named(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", kinds={"token_embd.weight": Q.Q8_0})
    info = read_header(path).tensors["token_embd.weight"]
    data = bytearray(path.read_bytes())
    at = info.offset + 6 * info.row_bytes
    data[at : at + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(data)
    source = opened(path)
    with pytest.raises(SourceError, match=r"embed_tokens.weight' has NaN in row 6"):
        read(source.tensors, "model.embed_tokens.weight")


def test_a_type_that_gguf_cannot_dequantise_is_refused_at_opening(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    header = read_header(path)
    info = header.tensors["token_embd.weight"]
    odd = TensorInfo(info.name, Q.Q8_K, (4, 256), info.offset, 292)
    header.tensors[info.name] = odd
    with pytest.raises(UnsupportedError, match=r"'token_embd.weight' has quantisation type Q8_K"):
        GgufMap(path, header, {"head_dim": 16})


def test_a_file_that_shrinks_after_opening_is_one_clear_error(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    source = opened(path)
    info = read_header(path).tensors["blk.1.ffn_down.weight"]
    with path.open("r+b") as file:
        file.truncate(info.offset + 10)
    with pytest.raises(SourceError, match="cut short"):
        read(source.tensors, "model.layers.1.mlp.down_proj.weight")


def test_reading_rows_needs_little_more_memory_than_the_result(tmp_path: Path) -> None:
    import tracemalloc

    tensors, _ = quantised_map(tmp_path / "t.bin", Q.Q4_0, rows=65536, seed=1)
    tracemalloc.start()
    result = read(tensors, "lm_head.weight")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.nbytes == 64 << 20
    assert peak - result.nbytes < 4 * reading.PIECE_BYTES
