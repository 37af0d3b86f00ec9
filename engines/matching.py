"""Which engine runs which graph, and where it computes; looked at before anything is loaded.

engine         device   lowerings              activations (hidden states and KV)
auto, cpu      CPU      ort, standard, concat  float32, float16
cuda           GPU      ort, standard          float16; standard: float32 and bfloat16 too
ort-tensorrt   GPU      standard               float32, float16, bfloat16
tensorrt       GPU      standard               float32, float16, bfloat16
tensorrt-rtx   GPU      standard               float32, float16, bfloat16
fake           CPU      all                    all

Beside that a GPU may be too old for a type: see `engines/cuda.py`.
"""

from __future__ import annotations

import difflib
import re
from typing import Literal

from specedge.contract import GraphSpec
from specedge.errors import EngineError

LISTED = ("auto", "cpu", "cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx")
NAMES = (*LISTED, "fake")  # which is for tests, and on no list that a person chooses from
MEANT = {  # what else an engine is called
    "gpu": "cuda",
    "nvidia": "cuda",
    "onnxruntime": "cpu",
    "ort": "cpu",
    "trt": "tensorrt",
    "rtx": "tensorrt-rtx",
}
PROVIDERS = {"cpu": "cpu", "cuda": "cuda", "ort-tensorrt": "tensorrt"}  # of ONNX Runtime
Backend = Literal["tensorrt", "tensorrt-rtx"]
PLANNED: tuple[Backend, ...] = ("tensorrt", "tensorrt-rtx")  # run plans of `specedge build`
ON_GPU = ("cuda", "ort-tensorrt", *PLANNED)


def checked(name: str, where: str = "engine") -> str:
    """The engine that a name stands for: "auto" is "cpu".

    Args:
        where: the option that says it.

    Raises:
        EngineError: no engine has that name.
    """
    if name not in NAMES:
        near = nearest(name)
        hint = f"did you mean {near}?" if near else "choose one of them"
        raise EngineError(f"{where}: no engine {name!r}; there are {', '.join(LISTED)}: {hint}")
    return "cpu" if name == "auto" else name


def nearest(name: str) -> str | None:
    """The engine that somebody meant who wrote this; None: it is like none."""
    near = difflib.get_close_matches(name.lower(), [*NAMES, *MEANT], n=1)
    return MEANT.get(near[0], near[0]) if near else None


def of_draft(said: str) -> str:
    """What an engine says of the target or of either model, said of the draft: how to run a graph
    elsewhere is another option there."""
    return re.sub(r"(?<!\S)--engine\b", "--draft-engine", said)


def check(name: str, spec: GraphSpec) -> None:
    """Raise EngineError unless the engine runs such a graph.

    Args:
        name: an engine, not "auto".
        spec: of the graph.
    """
    if name == "fake":
        return
    where = f"engine {name}: the {spec.role}"
    if spec.lowering == "concat" and name != "cpu":
        raise EngineError(
            f"{where} is a graph of --frontend optimum, which runs on the CPU only; use "
            "--engine cpu, or export with the native front end where it knows the model"
        )
    if spec.lowering == "ort":
        _check_fused(name, spec, where)
    elif name == "cpu" and spec.kv_dtype == "bfloat16":
        raise EngineError(
            f"{where} has bfloat16 activations, which ONNX Runtime does not compute on a CPU; "
            f"export with --set {activations_key(spec)}=fp16 or fp32"
        )


def _check_fused(name: str, spec: GraphSpec, where: str) -> None:
    """Of a graph made of ONNX Runtime's own operators."""
    if name in ("ort-tensorrt", *PLANNED):
        raise EngineError(
            f"{where} is made of ONNX Runtime's fused operators, which TensorRT does not have; "
            "export with --lowering standard"
        )
    if name == "cuda" and spec.kv_dtype == "float32":
        raise EngineError(
            f"{where} has float32 activations, which ONNX Runtime's attention on CUDA does not "
            f"take; export with --set {activations_key(spec)}=fp16, or with --lowering standard"
        )


def activations_key(spec: GraphSpec) -> str:
    """Where a config says of what type the graph's activations are: weights that are not quantised
    are what they are multiplied with."""
    quantised = spec.precision in ("int4", "int8")
    return "export.activations" if quantised else f"{spec.role}.precision"


def runs_as(name: str, description: str) -> bool:
    """Whether an engine that describes itself so is the one of that name, "auto" included.

    Args:
        description: of an open engine: runtime with version, where, threads.
    """
    first, *rest = description.split(", ")
    runtime = first.split(" ")[0]
    provider = PROVIDERS.get(checked(name))
    if provider is None:
        return runtime == name
    return name == "auto" or provider in rest
