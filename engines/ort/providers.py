"""ONNX Runtime's providers: a session on the one that was asked for, or an error.

A session's threads spin between calls, which an engine alone gains from: they are there when the
next call comes. But a target's idle threads that spin while its draft runs make a round almost
twice as long on two cores, so engines that take turns stop spinning (docs/decisions/0003).
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from specedge.contract import LOGITS, EngineOptions, GraphSpec, past
from specedge.errors import EngineError, one_line

PROVIDERS = {"cpu": "CPUExecutionProvider"}


def open_session(
    model: Path,
    provider: str,
    threads: int,
    *,
    options: EngineOptions | None = None,
    takes_turns: bool = False,
) -> ort.InferenceSession:
    """Load a graph on one provider and no other.

    Args:
        model: the .onnx file.
        provider: a key of PROVIDERS.
        threads: of the intra-op pool, at least 1.
        options: of the provider, in its own words.
        takes_turns: threads stop spinning when a call ends.

    Raises:
        EngineError: the graph does not load, or the provider is not the one asked for.
    """
    if provider not in PROVIDERS:
        raise EngineError(f"engine: unknown provider {provider!r}; known: {', '.join(PROVIDERS)}")
    if options:
        raise EngineError(f"engine: provider {provider} takes no options; found {sorted(options)}")
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    if takes_turns:
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    # failures arrive as exceptions; a second copy on stderr is noise
    settings.log_severity_level = 4
    try:
        session = ort.InferenceSession(model, settings, providers=[PROVIDERS[provider]])
    except Exception as error:  # the runtime's exceptions share no base below Exception
        raise EngineError(
            f"{model.name}: ONNX Runtime cannot load the graph: {one_line(error)}"
        ) from error
    found = session.get_providers()
    if found[0] != PROVIDERS[provider]:
        raise EngineError(
            f"{model.name}: asked for {PROVIDERS[provider]}, ONNX Runtime chose {found[0]}; "
            "run `specedge doctor`"
        )
    return session


def check_graph(spec: GraphSpec, session: ort.InferenceSession) -> None:
    """Raise EngineError where the manifest promises other sizes than the graph has.

    A binding of another shape would let the runtime write past our buffers, or not be filled.
    """
    inputs = {node.name: node.shape for node in session.get_inputs()}
    outputs = {node.name: node.shape for node in session.get_outputs()}
    kv = [name for name in inputs if name.startswith("past.")]
    first = inputs.get(past(0, "key"), [])
    found = {
        "layers": len(kv) / 2,
        "kv_heads": first[1] if len(first) == 4 else None,
        "head_dim": first[3] if len(first) == 4 else None,
        "vocab": (outputs.get(LOGITS) or [None])[-1],
    }
    for name, size in found.items():
        if size != getattr(spec, name):
            raise EngineError(
                f"{spec.model}: the manifest says {name} = {getattr(spec, name)}, the graph has "
                f"{size}; one of them was altered: export the bundle again"
            )
