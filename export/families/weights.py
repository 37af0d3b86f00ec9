"""Does a checkpoint hold exactly what the decoder uses?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import TensorMap
from specedge.export.decoder import DecoderSpec, Linear

_TIED_HEAD = "lm_head.weight"
_COMPUTED = ("rotary_emb.inv_freq", "rope_freqs.weight")  # tables that the rope recomputes


def used(spec: DecoderSpec) -> set[str]:
    """Names of all tensors that a lowering of `spec` reads."""
    names = {spec.embedding, spec.final_norm} | {name for name, _ in _vectors(spec)}
    for linear in _linears(spec):
        names.update(rows.name for rows in linear.weights)
        names.update(linear.bias)
    return names | ({spec.head} if spec.head is not None else set())


def unused(spec: DecoderSpec, names: Iterable[str]) -> list[str]:
    """Those of `names` that `spec` would silently ignore, sorted.

    A head that is tied to the embedding and stored rotary tables may be ignored.
    """
    known = used(spec)
    if spec.head is None:
        known.add(_TIED_HEAD)
    return sorted(name for name in names if name not in known and not name.endswith(_COMPUTED))


def check_weights(spec: DecoderSpec, tensors: TensorMap) -> None:
    """Compare names and shapes; nothing is read.

    Raises:
        SourceError: a tensor is missing or has another shape than the config implies.
        UnsupportedError: the checkpoint holds a tensor that the family has no place for.
    """
    extra = unused(spec, tensors.names())
    if extra:
        raise UnsupportedError(
            f"checkpoint: {len(extra)} tensors that {spec.model_type} has no place for, the first "
            f"is {extra[0]!r}; leaving weights out would change the model"
        )
    table = (spec.vocab_rows, spec.hidden)
    for name in [spec.embedding] if spec.head is None else [spec.embedding, spec.head]:
        _check_shape(tensors, name, table)
    for name, size in _vectors(spec):
        _check_shape(tensors, name, (size,))
    for linear in _linears(spec):
        _check_linear(tensors, linear)


def _check_shape(tensors: TensorMap, name: str, expected: tuple[int, ...]) -> None:
    found = tensors.shape(name)
    if found != expected:
        raise SourceError(
            f"checkpoint: {name} must be {list(expected)} by the config, found {list(found)}"
        )


def _check_linear(tensors: TensorMap, linear: Linear) -> None:
    stacked = 0
    for rows in linear.weights:
        shape = tensors.shape(rows.name)
        if len(shape) != 2 or shape[1] != linear.in_features:
            raise SourceError(
                f"checkpoint: {rows.name} must have {linear.in_features} columns by the config, "
                f"found shape {list(shape)}"
            )
        stacked += len(range(shape[0])[rows.start : rows.stop])
    where = ", ".join(rows.name for rows in linear.weights)
    if stacked != linear.out_features:
        raise SourceError(
            f"checkpoint: {where} must have {linear.out_features} rows together by the config, "
            f"found {stacked}"
        )
    biases = [tensors.shape(name) for name in linear.bias]
    if biases and (
        any(len(shape) != 1 for shape in biases)
        or sum(shape[0] for shape in biases) != linear.out_features
    ):
        raise SourceError(
            f"checkpoint: the biases of {where} must have {linear.out_features} elements "
            f"together, found shapes {[list(shape) for shape in biases]}"
        )


def _linears(spec: DecoderSpec) -> Iterator[Linear]:
    for layer in spec.layers:
        yield from (layer.qkv, layer.o, layer.gate_up, layer.down)


def _vectors(spec: DecoderSpec) -> Iterator[tuple[str, int]]:
    """Norm weights with their sizes."""
    yield spec.final_norm, spec.hidden
    for layer in spec.layers:
        for name in (
            layer.input_norm,
            layer.mlp_norm,
            layer.post_attention_norm,
            layer.post_mlp_norm,
        ):
            if name is not None:
                yield name, spec.hidden
        for name in (layer.q_norm, layer.k_norm):
            if name is not None:
                yield name, spec.head_dim
