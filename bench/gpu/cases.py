"""The bundles of a check, and how they are made on the box."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.running import MB, Emit, Json, line
from gpu.shape import draw_checkpoint

PROMPTS = Path(__file__).resolve().parent.parent / "prompts"
PLANNED = ("tensorrt", "tensorrt-rtx")  # run what `specedge build` made
CAPTURED = {  # by engine: how it runs otherwise than by itself, CUDA graphs on or off
    "cuda": ("CUDA graphs", {"enable_cuda_graph": True}),
    "tensorrt": ("no CUDA graphs", {"cuda_graphs": False}),
    "tensorrt-rtx": ("no CUDA graphs", {"cuda_graphs": False}),
}


@dataclass(frozen=True)
class Case:
    """One bundle.

    Cases of one name are one bundle.

    Args:
        reference: the case whose logits on the CPU it is held against; the same weights.
        draft: an int4 copy of the same weights drafts.
        timed: curves and speed are measured on it.
    """

    name: str
    lowering: str
    precision: str
    reference: str
    activations: str = "auto"
    draft: bool = False
    timed: bool = False


EXACT = Case("ort-fp32", "ort", "fp32", "ort-fp32", draft=True, timed=True)
ROUNDED = Case("std-int4-fp32", "standard", "int4", "std-int4-fp32", "fp32", timed=True)
REFERENCES = (EXACT, ROUNDED)
ON_CPU = (
    *REFERENCES,
    Case("std-fp32", "standard", "fp32", EXACT.name, draft=True, timed=True),
    Case("ort-int4", "ort", "int4", ROUNDED.name),
    Case("std-fp16", "standard", "fp16", EXACT.name, draft=True),
)
ON_GPU = (
    Case("ort-fp16", "ort", "fp16", EXACT.name, draft=True, timed=True),
    Case("ort-int4-fp16", "ort", "int4", ROUNDED.name, "fp16", timed=True),
    Case("std-fp16", "standard", "fp16", EXACT.name, draft=True, timed=True),
    Case("std-int4-fp16", "standard", "int4", ROUNDED.name, "fp16", timed=True),
    Case("std-bf16", "standard", "bf16", EXACT.name),
)


def export(request: Json, emit: Emit) -> None:
    """Every case from one checkpoint, a few at once; those that are there already are kept."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    source, work = Path(request["source"]), Path(request["work"])
    if request.get("shape") and not source.exists():
        draw_checkpoint(request["shape"], source)
    wanted = [Case(**said) for said in request["cases"]]
    jobs = max(1, min(len(wanted), len(os.sched_getaffinity(0)) // 4))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [
            (case, pool.submit(export_case, case, source, work, request["context"]))
            for case in wanted
        ]
        for case, future in futures:
            try:
                seconds, size = future.result()
            except Exception as error:  # one case that cannot be had leaves the others
                emit(case=case.name, status="refused", reason=line(error))
            else:
                figures = {"seconds": seconds, "weights_mb": size / MB}
                emit(case=case.name, status="measured", figures=figures)


def export_case(case: Case, source: Path, work: Path, context: int) -> tuple[float, int]:
    """Export one bundle; its seconds and the bytes of the target's weights."""
    from specedge.bundle import Bundle
    from specedge.config import Config
    from specedge.export import calibration
    from specedge.export.builder import build

    began, folder = time.perf_counter(), work / case.name
    calibration.TEXT = calibration.TEXT[:400]  # the quality of rounding is no question here
    said: Json = {
        "name": case.name,
        "target": {"source": str(source), "precision": case.precision},
        "export": {
            "lowering": case.lowering,
            "activations": case.activations,
            "context": context,
            "max_verify": 16,
            "block_size": 64,
            "symmetric": True,  # so that both lowerings have the same weights
            "rounding": "plain",
        },
    }
    if case.draft:
        said["draft"] = {"source": str(source), "precision": "int4"}
    if not (folder / "specedge.json").exists():
        build(Config.model_validate(said), folder)
    return time.perf_counter() - began, Bundle.open(
        folder, verify=False
    ).manifest.target.weight_bytes


def build_plans(request: Json, emit: Emit) -> None:
    """`specedge build` for every case of lowering standard."""
    code = "from specedge.cli import main; main()"
    for case in cases(request, emit):
        began = time.perf_counter()
        command = [sys.executable, "-c", code, "build", folder(request, case)]
        done = subprocess.run(
            [*command, "--backend", request["engine"]], capture_output=True, text=True, check=False
        )
        figures = {"seconds": time.perf_counter() - began}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            emit(
                case=case.name,
                status="refused",
                reason=lines[-1].removeprefix("error: "),
                figures=figures,
            )
        else:
            emit(case=case.name, status="measured", figures=figures)


def cases(request: Json, emit: Emit) -> Iterator[Case]:
    """Those of the stage; one whose bundle is not there is a record and no more."""
    for said in request["cases"]:
        case = Case(**said)
        if Path(folder(request, case), "specedge.json").exists():
            yield case
        else:
            emit(case=case.name, status="skipped", reason="it was not exported")


def folder(request: Json, case: Case) -> str:
    return str(Path(request["work"]) / case.name)


def variants(case: Case, engine: str) -> list[tuple[str, Json | None]]:
    """A case with CUDA graphs and without, where the engine has both: names and options."""
    ways: list[tuple[str, Json | None]] = [(case.name, None)]
    if engine in CAPTURED and case.lowering == "standard":
        said, options = CAPTURED[engine]
        ways.append((f"{case.name}, {said}", options))
    return ways


def noted(engine: Any) -> Json:
    """What an engine says of how it runs, and what it allocated itself, where it says so."""
    said: Json = {}
    if notes := getattr(engine, "notes", ()):
        said["notes"] = list(notes)
    if (size := getattr(engine, "device_bytes", None)) is not None:
        said["engine_mb"] = size / MB
    return said


def opened(
    request: Json, case: Case, emit: Emit, options: Json | None = None, name: str = ""
) -> AbstractContextManager[Any]:
    """The stage's engine on a case, as `_recorded`; `options` in the runtime's own words."""
    from specedge.bundle import Bundle
    from specedge.engines import registry

    def make() -> Any:
        bundle = Bundle.open(folder(request, case), verify=False)
        spec = bundle.manifest.target
        return registry.create(request["engine"], bundle.path, spec, options=options)

    return _recorded(name or case.name, emit, make)


def desk(request: Json, case: Case, emit: Emit) -> AbstractContextManager[Any]:
    """A `specedge.desk.Desk` of the stage's engine, as `_recorded`."""
    from specedge.desk import Desk

    return _recorded(
        case.name,
        emit,
        lambda: Desk(folder(request, case), engine=request["engine"], verify=False),
    )


@contextmanager
def _recorded(name: str, emit: Emit, make: Callable[[], Any]) -> Iterator[Any]:
    """What `make` opens; None, and a record that it was refused, where it does not open.

    A SpecedgeError of the block is a record that the case failed, and ends the block.
    """
    from specedge.errors import SpecedgeError

    try:
        made = make()
    except (SpecedgeError, MemoryError) as error:
        emit(case=name, status="refused", reason=line(error))
        yield None
        return
    try:
        yield made
    except SpecedgeError as error:
        emit(case=name, status="failed", reason=line(error))
    finally:
        made.close()


def prompts(request: Json) -> dict[str, str]:
    """By name; cut to what the context has room for."""
    files = {"code edit": "edit_60_lines.md", "chat": "chat.md"}
    files = dict(list(files.items())[: request["prompts"]])
    texts = {name: (PROMPTS / file).read_text("utf-8") for name, file in files.items()}
    return {name: text[: request["characters"]] for name, text in texts.items()}
