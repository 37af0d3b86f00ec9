"""Sizes that a graph leaves open, written into its file's bytes before it is parsed.

TensorRT's cache update takes a static T, and says so while it parses: a profile or a shape set
afterwards comes too late. A runtime does not carry the `onnx` package, so the few fields that hold
a shape are rewritten here, and everything else is copied as it is.

The file is a protocol buffer: a sequence of fields, each a tag (number << 3 | wire type) and a
payload. Numbers below are those of onnx.proto: ModelProto.graph 7; GraphProto.input 11, output 12,
value_info 13; ValueInfoProto.name 1, type 2; TypeProto.tensor_type 1; TypeProto.Tensor.shape 2;
TensorShapeProto.dim 1; Dimension.dim_value 1, dim_param 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from specedge.errors import PlanError

Dim = int | str | None
_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5
_GRAPH = 7
_INPUT, _OUTPUT, _VALUE = 11, 12, 13


class _Field(NamedTuple):
    number: int
    wire: int
    start: int  # of the tag
    payload: int  # of what follows tag and length
    end: int


def input_shapes(model: bytes) -> dict[str, tuple[Dim, ...]]:
    """Of every graph input: an int, a symbol, or None where the file says nothing.

    Raises:
        PlanError: not an ONNX file, or one that is cut short.
    """
    try:
        return dict(_inputs(model))
    except (IndexError, ValueError) as error:
        raise PlanError(f"the graph is not an ONNX file, or is cut short: {error}") from None


def pinned(model: bytes, sizes: Mapping[str, int]) -> bytes:
    """The same graph with the symbols in `sizes` replaced by numbers, wherever a shape names them.

    Raises:
        PlanError: as `input_shapes`.
    """

    def dimension(data: bytes) -> bytes:
        named = [data[f.payload : f.end] for f in _fields(data) if f.number == 2]
        size = sizes.get(named[-1].decode("utf-8", "replace")) if named else None
        return data if size is None else b"\x08" + _varint(size)

    def value(data: bytes) -> bytes:
        return _within(data, (2, 1, 2, 1), dimension)  # type, tensor_type, shape, dim

    def graph(data: bytes) -> bytes:
        return _mapped(data, {_INPUT: value, _OUTPUT: value, _VALUE: value})

    try:
        return _mapped(model, {_GRAPH: graph})
    except (IndexError, ValueError) as error:
        raise PlanError(f"the graph is not an ONNX file, or is cut short: {error}") from None


def _within(data: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """Change the messages at the end of a path of field numbers."""
    if not path:
        return change(data)
    return _mapped(data, {path[0]: lambda inner: _within(inner, path[1:], change)})


def _mapped(data: bytes, changes: Mapping[int, Callable[[bytes], bytes]]) -> bytes:
    """A message whose embedded messages of some numbers are changed; the rest byte for byte."""
    parts = []
    for field in _fields(data):
        change = changes.get(field.number) if field.wire == _BYTES else None
        if change is None:
            parts.append(data[field.start : field.end])
            continue
        inner = change(data[field.payload : field.end])
        parts += [_varint(field.number << 3 | _BYTES), _varint(len(inner)), inner]
    return b"".join(parts)


def _inputs(model: bytes) -> Iterator[tuple[str, tuple[Dim, ...]]]:
    for graph in _children(model, _GRAPH):
        for value in _children(graph, _INPUT):
            name = next(_children(value, 1), b"").decode("utf-8", "replace")
            dims = [
                _dimension(dim)
                for kind in _children(value, 2)
                for tensor in _children(kind, 1)
                for shape in _children(tensor, 2)
                for dim in _children(shape, 1)
            ]
            yield name, tuple(dims)


def _dimension(data: bytes) -> Dim:
    said: Dim = None
    for field in _fields(data):
        if field.number == 1 and field.wire == _VARINT:
            said = _read_varint(data, field.payload)[0]
        elif field.number == 2 and field.wire == _BYTES:
            said = data[field.payload : field.end].decode("utf-8", "replace")
    return said


def _children(data: bytes, number: int) -> Iterator[bytes]:
    for field in _fields(data):
        if field.number == number and field.wire == _BYTES:
            yield data[field.payload : field.end]


def _fields(data: bytes) -> Iterator[_Field]:
    """Raises IndexError or ValueError where the bytes are no protocol buffer."""
    at = 0
    while at < len(data):
        tag, payload = _read_varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            end = _read_varint(data, payload)[1]
        elif wire == _BYTES:
            length, payload = _read_varint(data, payload)
            end = payload + length
        elif wire in (_I64, _I32):
            end = payload + (8 if wire == _I64 else 4)
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if end > len(data):
            raise ValueError(f"a field of {end - payload} bytes at byte {at} of {len(data)}")
        yield _Field(tag >> 3, wire, at, payload, end)
        at = end


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits at byte {at}")


def _varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
