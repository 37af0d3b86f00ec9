"""From a graph's file to a network of which nothing was lost on the way.

The parser drops inputs of a node that it does not know, without a word: an `Attention` whose
lengths come as `nonpad_kv_seqlen` parses, builds, and attends to rows that were never written. So
the network is asked, not the parser: every input of the contract must reach an output, and the
lengths must reach the mask of every attention, the place where every cache is written, and the
positions of every rotary embedding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specedge.contract import (
    CACHED_LENGTHS,
    GREEDY_IDS,
    GREEDY_LOGITS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    GraphSpec,
    past,
    present,
    tap,
)
from specedge.engines.trt import library as libraries
from specedge.engines.trt.library import Library
from specedge.engines.trt.pinning import Dim, input_shapes, pinned
from specedge.errors import PlanError

WARNING = 2  # severity; below it are errors
# Warnings that mean the network is not the graph, or that a call could fail.
_GRAVE = re.compile(
    r"unused input|unsupported|not supported|not self-consistent|is ignored|will be ignored",
    re.IGNORECASE,
)
_OWN_LOGGER = "logger passed into"  # another part of the process was there first
_HARMLESS = re.compile(r"Make sure (in|out)put \S+ has Int64 binding")
_USAGE = re.compile(r"API Usage Error \((.*?)(?:\. In \w+ at |$)")
_ASSERTION = re.compile(r".*Assertion failed: (\([^)]*\)|.*?): ")
_DRIVER = "CUDA driver version"  # follows any error where there is no driver


@dataclass(frozen=True)
class Parsed:
    """A network, and what must live as long as it does.

    Args:
        builder, network: the library's own.
        parser: holds the weights that the network points to.
    """

    library: Library
    builder: Any
    network: Any
    parser: Any


def parse(library: Library, bundle: Path, spec: GraphSpec, context: int) -> Parsed:
    """Parse a graph of the bundle with B = 1 and a static T, and check what came of it.

    Args:
        context: T.

    Raises:
        PlanError: the graph cannot be read, an operator is not supported, or something of the
            graph did not reach the network.
    """
    path = bundle / spec.model
    try:
        model = path.read_bytes()
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    shapes = input_shapes(model)
    model = pinned(model, _sizes(path, shapes, context))
    log = libraries.logger(library.backend)
    log.lines.clear()
    try:
        builder = library.module.Builder(log)
    except Exception as error:  # without a driver TensorRT has no builder, and says it so
        raise PlanError(
            f"{library.backend} {library.version} cannot build here: {last_error(log.lines)}; "
            "it needs the NVIDIA driver and the GPU that the plan is for"
        ) from error
    network = library.network(builder)
    parser = library.module.OnnxParser(network, log)
    if not parser.parse(model, str(path)):
        raise PlanError(
            f"{path}: {library.backend} cannot use this graph: {_parse_error(parser, log)}"
        )
    check_warnings(path, log.lines)
    _drop_taps(spec, network)
    layers = Layers(library, network)
    check_network(path, spec, network, layers, context)
    for attention in layers.attentions:
        # float32, and heads of 8 or 512, have no kernel of their own and do not build without it;
        # where there is one the plan stays the same, its bytes and its memory
        attention.decomposable = True
    return Parsed(library, builder, network, parser)


def _drop_taps(spec: GraphSpec, network: Any) -> None:
    """A plan writes all of its outputs in every call; nobody reads these yet."""
    names = {tap(layer) for layer in spec.taps}
    for tensor in [network.get_output(index) for index in range(network.num_outputs)]:
        if tensor.name in names:
            network.unmark_output(tensor)


class Layers:
    """A parsed network as a graph: which layer makes a tensor, and what a tensor depends on."""

    def __init__(self, library: Library, network: Any) -> None:
        kinds, types = library.module.LayerType, library.module.DataType
        self.elements = {types.FLOAT: "float32", types.HALF: "float16", types.BF16: "bfloat16"}
        self.attentions: list[Any] = []
        self.caches: list[Any] = []
        self.rotations: list[Any] = []
        self._inputs: dict[str, list[str]] = {}  # of the layer that makes the tensor
        for layer in (network.get_layer(index) for index in range(network.num_layers)):
            inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
            named = [tensor.name for tensor in inputs if tensor is not None]
            if layer.type == kinds.SHAPE:
                named = []  # what depends on a tensor's shape does not depend on its values
            for index in range(layer.num_outputs):
                self._inputs.setdefault(layer.get_output(index).name, []).extend(named)
            if layer.type == kinds.ATTENTION_INPUT:
                # the bindings hand out every layer as its base class
                layer.__class__ = library.module.IAttentionInputLayer
                self.attentions.append(layer.attention)
            elif layer.type == kinds.KV_CACHE_UPDATE:
                self.caches.append(layer)
            elif layer.type == kinds.ROTARY_EMBEDDING:
                self.rotations.append(layer)

    def ancestors(self, names: Iterable[str]) -> set[str]:
        """The tensors that these depend on, themselves included."""
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._inputs.get(name, [])
        return found


def check_network(path: Path, spec: GraphSpec, network: Any, layers: Layers, context: int) -> None:
    """Raise PlanError unless the network is all of contract 1 and keeps its lengths."""
    for finding in _findings(spec, network, layers, context):
        raise PlanError(
            f"{path}: the parsed network is not the graph: {finding}; export the bundle again with "
            "--lowering standard"
        )


def check_warnings(path: Path, lines: Iterable[tuple[int, str]]) -> None:
    """Raise PlanError where the library warned that something of the graph is left out."""
    for severity, text in lines:
        if severity <= WARNING and _GRAVE.search(text) and _OWN_LOGGER not in text:
            raise PlanError(
                f"{path}: the plan would not compute this graph: {text[:200]}; export the bundle "
                "again with --lowering standard"
            )


def _findings(spec: GraphSpec, network: Any, layers: Layers, context: int) -> Iterator[str]:
    inputs = {tensor.name: tensor for tensor in map(network.get_input, range(network.num_inputs))}
    outputs = {t.name: t for t in map(network.get_output, range(network.num_outputs))}
    pairs = [(past(layer, part), present(layer, part)) for layer, part in _cache_parts(spec)]
    wanted = {INPUT_IDS, CACHED_LENGTHS, LOGIT_ROWS, *(old for old, _ in pairs)}
    if inputs.keys() != wanted:
        yield f"inputs that differ: {', '.join(sorted(inputs.keys() ^ wanted)[:4])}"
    missing = {LOGITS, GREEDY_IDS, GREEDY_LOGITS, *(new for _, new in pairs)} - outputs.keys()
    if missing:
        yield f"no output {', '.join(sorted(missing)[:4])}"
    extra = outputs.keys() - {LOGITS, GREEDY_IDS, GREEDY_LOGITS, *(new for _, new in pairs)}
    if extra:
        yield f"outputs that the manifest does not know: {', '.join(sorted(extra)[:4])}"
    vocab = tuple(outputs[LOGITS].shape)[-1]
    if vocab != spec.vocab:
        yield f"logits of {vocab} ids, the manifest says {spec.vocab}"
    reached = layers.ancestors(outputs)
    for name in inputs:
        if name not in reached:
            yield f"unused input: {name} reaches no output"
    size = (1, spec.kv_heads, context, spec.head_dim)
    for name, _ in pairs:
        if tuple(inputs[name].shape) != size:
            yield f"{name} has shape {tuple(inputs[name].shape)}, expected {size}"
        element = layers.elements.get(inputs[name].dtype, "no float")
        if element != spec.kv_dtype:
            yield f"{name} is {element}, the manifest says {spec.kv_dtype}"
    updated = {(c.get_input(0).name, c.get_output(0).name) for c in layers.caches}
    for pair in pairs:
        if pair not in updated:
            yield f"{pair[1]} is not {pair[0]} updated in place"
    for what, layer, where in (
        *(("update of a cache", layer, layer.get_input(2)) for layer in layers.caches),
        *(("rotary embedding", layer, layer.get_input(3)) for layer in layers.rotations),
    ):
        if where is None or CACHED_LENGTHS not in layers.ancestors([where.name]):
            yield f"{what} {layer.name!r} does not depend on {CACHED_LENGTHS}"
    if len(layers.attentions) != spec.layers:
        yield f"{len(layers.attentions)} attentions, expected {spec.layers}"
    for attention in layers.attentions:
        mask = attention.mask
        if mask is None:
            yield f"attention {attention.name!r} has no mask: its lengths were dropped"
        elif CACHED_LENGTHS not in layers.ancestors([mask.name]):
            yield f"the mask of attention {attention.name!r} does not depend on {CACHED_LENGTHS}"
        if attention.causal:
            yield f"attention {attention.name!r} is causal from the upper left, not from its rows"


def _cache_parts(spec: GraphSpec) -> Iterator[tuple[int, Any]]:
    for layer in range(spec.layers):
        yield layer, "key"
        yield layer, "value"


def _sizes(path: Path, shapes: dict[str, tuple[Dim, ...]], context: int) -> dict[str, int]:
    """The symbols of B and T, with what they become."""
    batch, *_, rows, _width = shapes.get(past(0, "key"), ()) or (None,) * 4
    found: dict[str, int] = {}
    for dim, size, letter in ((batch, 1, "B"), (rows, context, "T")):
        if isinstance(dim, str):
            found[dim] = size
        elif dim != size:
            raise PlanError(
                f"{path}: {letter} of {past(0, 'key')} is {dim}, expected a symbol or {size}; "
                "export the bundle again with --lowering standard"
            )
    return found


def _parse_error(parser: Any, log: Any) -> str:
    """What the parser said of the node that it stopped at, without its source lines."""
    if not parser.num_errors:
        return last_error(log.lines)
    error = parser.get_error(parser.num_errors - 1)
    said = " ".join(error.desc().split())
    usage = _USAGE.search(said)
    said = usage[1] if usage else _ASSERTION.sub("", said)
    if said in ("", "false"):
        said = "not supported"
    node = " ".join(part for part in (error.node_operator(), error.node_name()) if part)
    return f"{node}: {said[:300]}" if node else said[:300]


def last_error(lines: Iterable[tuple[int, str]]) -> str:
    """The last that the library logged as an error."""
    errors = [text for level, text in lines if level < WARNING and _DRIVER not in text]
    return (errors or ["no reason given"])[-1][:300]


def warnings(lines: Iterable[tuple[int, str]]) -> list[str]:
    """What it warned of, each once, without what is always said of int64 inputs."""
    said = (text[:300] for level, text in lines if level == WARNING and _OWN_LOGGER not in text)
    return list(dict.fromkeys(text for text in said if not _HARMLESS.search(text)))
