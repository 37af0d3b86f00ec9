"""Shapes pinned in a graph's bytes, against the onnx package doing the same to the parsed file."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import trt_graphs
from specedge.engines.trt.pinning import input_shapes, pinned
from specedge.errors import PlanError

SYMBOLS = ("B", "S", "T", "M", "T2", "größe")
sizes = st.one_of(st.integers(1, 1 << 40), st.sampled_from(SYMBOLS), st.none())
several = st.lists(st.lists(sizes, max_size=5), max_size=4)
pins = st.dictionaries(st.sampled_from(SYMBOLS), st.integers(1, 1 << 33))


def model_of(inputs: list[Any], outputs: list[Any], inner: list[Any]) -> onnx.ModelProto:
    """A graph whose shapes are these; it need not be one that computes anything."""
    named = [
        [
            helper.make_tensor_value_info(f"{letter}{n}", TensorProto.FLOAT, s)
            for n, s in enumerate(each)
        ]
        for letter, each in (("i", inputs), ("o", outputs), ("v", inner))
    ]
    node = helper.make_node("Identity", ["i0"], ["o0"], T="T", B=3.5)
    graph = helper.make_graph([node], "any", named[0], named[1], value_info=named[2])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


def pinned_by_onnx(model: onnx.ModelProto, pins: dict[str, int]) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for value in [*copy.graph.input, *copy.graph.output, *copy.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in pins:
                dim.dim_value = pins[dim.dim_param]
    return copy


@given(several, several, several, pins)
def test_the_bytes_say_what_the_parsed_file_would(
    inputs: list[Any], outputs: list[Any], inner: list[Any], pins: dict[str, int]
) -> None:
    model = model_of(inputs, outputs, inner)
    data = pinned(model.SerializeToString(), pins)
    assert onnx.ModelProto.FromString(data) == pinned_by_onnx(model, pins)
    found = input_shapes(data)
    want = [[pins.get(dim, dim) if isinstance(dim, str) else dim for dim in s] for s in inputs]
    assert [list(found[f"i{n}"]) for n in range(len(inputs))] == want


def test_a_graph_without_the_symbols_stays_byte_for_byte() -> None:
    data = trt_graphs.graph().SerializeToString()
    assert pinned(data, {"Q": 7}) == data
    assert pinned(data, {}) == data


@given(st.data())
def test_a_file_that_is_cut_is_refused_and_never_half_read(data: st.DataObject) -> None:
    whole = trt_graphs.graph().SerializeToString()
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    try:
        onnx.ModelProto.FromString(cut)
    except DecodeError:
        with pytest.raises(PlanError, match="cut short"):
            input_shapes(cut)
    else:  # cut between two fields of the model itself
        assert input_shapes(cut) in ({}, input_shapes(whole))


@pytest.mark.parametrize("data", [b"\x3b", b"\x3a\x05abc", b"\xff" * 20, b"\x3a\x02\x5a\x07"])
def test_what_is_no_graph_is_refused(data: bytes) -> None:
    for act in (input_shapes, lambda given: pinned(given, {"T": 4})):
        with pytest.raises(PlanError, match="not an ONNX file"):
            act(data)
