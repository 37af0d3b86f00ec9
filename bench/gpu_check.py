"""What a box with one GPU makes of specedge: right, then how fast. Under 8 minutes, no network.

    PYTHONPATH=site python3 gpu_check.py --json gpu_check.json     # in a kit; see docs/gpu.md
    python bench/gpu_check.py --source smollm2                     # in a checkout
    python bench/gpu_check.py --provider cpu --quick --source smollm2
    python bench/gpu_check.py --show gpu_check.json

First it says what the box has. A runtime that is missing is skipped with its reason. Every stage is
a process of its own with a budget: one that hangs or crashes is reported, what it had measured is
kept, and the rest goes on. `--provider cpu` runs the same stages with engine "cpu" in the place of
the GPU's, so that the script is known to work; its figures say nothing of a GPU. Bundles that lie
in `--work` from an earlier run are taken as they are.

stages    box, export, large export, reference, build, logits, greedy, accept, curves, speed,
          large curves, torch
right     logits: within BOUNDS of the CPU's, over weights that are the same, with CUDA graphs and
          without, and greedy ids that are the argmax; greedy: the text with speculation is that
          without, near-ties explained by measured noise alone; accept: decided on the device as on
          the host
JSON      schema 1: box; stages [{name, status, seconds, budget_s, reason, peak_rss_mb,
          peak_device_mb}]; records [{stage, engine, case, status, reason, figures}]; passed.
          Peaks are of all processes of a stage together; of the device, of everybody's.
          A stage is done, out of time, crashed or skipped. A record is passed or failed
          (correctness), measured, refused (an engine did not open the bundle) or skipped.
exit      0: every correctness part that ran has passed, and one did; 1: one failed or did not come
          to its end, or an engine whose runtime is there opened nothing; 2: wrong usage; 3: nothing
          of ours could be run, or a package is missing
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from gpu import box, cases, deciding, fast, right, sources
from gpu.pieces import KitError
from gpu.planning import Asked, Planner
from gpu.report import Reasons, describe, render, tell, verdict
from gpu.running import Emit, Json, Running, Stage, child, held_back, line, save
from gpu.sources import CONFIG

HERE = Path(__file__).resolve().parent
SCHEMA = 1
MINUTES = {"gpu": 7.7, "cpu": 25.0}  # of all stages together
NEEDED = (  # modules that every check imports; one of a runtime is skipped with its reason
    *("specedge", "click", "gguf", "jinja2", "ml_dtypes", "numpy", "onnx", "onnx_ir", "pydantic"),
    *("rich", "safetensors", "tokenizers"),
)

KINDS: dict[str, Callable[[Json, Emit], None]] = {
    "box": box.box,
    "export": cases.export,
    "reference": right.reference,
    "build": cases.build_plans,
    "logits": right.logits,
    "greedy": right.greedy,
    "accept": deciding.accept,
    "curves": fast.curves,
    "speed": fast.speed,
    "torch": fast.torch_baseline,
}


def check(given: argparse.Namespace, source: Path, work: Path) -> Json:
    """Run everything; the result so far is saved after every stage.

    Args:
        source: GGUF file or a checkpoint's folder.
        work: folder of bundles.
    """
    deadline = time.perf_counter() + given.minutes * 60
    result: Json = {"schema": SCHEMA, "provider": given.provider, "quick": given.quick}
    result |= {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    result |= {"box": {}, "stages": [], "records": []}
    beside: dict[str, Running] = {}
    started: list[Running] = []
    free, reasons = _device_memory(), Reasons({})

    def start(stage: Stage) -> Running:
        budget_s = min(stage.budget_s, deadline - time.perf_counter())
        with held_back(signal.SIGINT):  # a process that nobody knows of would stay
            started.append(Running(stage, budget_s, HERE / "gpu_check.py", work, free))
        return started[-1]

    def finish(running: Running) -> list[Json]:
        said, records = running.finish()
        result["stages"].append(said)
        result["records"] += records
        result["passed"] = verdict(result) == 0
        tell(said, records, reasons)
        if given.json is not None:
            save(result, given.json)
        return records

    try:
        for record in finish(start(Stage("box", "box", 60))):
            result["box"] = record["figures"]
        if not result["box"]:
            return result
        print(describe(result["box"]), file=sys.stderr, flush=True)
        reasons = Reasons(result["box"])
        asked = Asked(
            given.provider, given.quick, str(source), str(work), given.plant, tuple(given.only)
        )
        for stage in Planner(asked, result["box"]).stages():
            if stage.beside:
                beside[stage.name] = start(stage)
                continue
            if stage.needs in beside:
                finish(beside.pop(stage.needs))
            finish(start(stage))
        for name in list(beside):
            finish(beside.pop(name))
    finally:
        for running in started:
            running.stop()
    return result


def _device_memory() -> Callable[[], int | None]:
    """Bytes of device memory that nobody has taken, each time it is called."""
    from specedge.power.nvml import open_gpu

    gpu = open_gpu()
    return (lambda: None) if isinstance(gpu, str) else gpu.free_bytes


def lacking() -> str | None:
    """Packages without which nothing can be checked, and what to do, in a line; None: none."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    if not (HERE / "kit.json").exists():
        remedy = "run make install in the checkout, and then .venv/bin/python bench/gpu_check.py"
    else:
        remedy = "run PYTHONPATH=site python3 gpu_check.py in the kit's folder"
        if not (HERE / "site").exists():
            remedy = (
                "run python3 -m pip install --no-index --no-deps --upgrade --target site "
                f"wheels/*.whl, and then {remedy}"
            )
    return f"{', '.join(missing)}: not on Python's path; {remedy}"


def shown(path: Path) -> Json:
    """A result that --json wrote. Raises ValueError: it is none; OSError: it cannot be read."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise ValueError(f"expected a result of gpu_check.py of schema {SCHEMA}")
    try:
        render(result)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a part is missing or of another kind ({line(error)})") from error
    return result


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see --help\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=("gpu", "cpu"), default="gpu", help="what is checked")
    parser.add_argument("--quick", action="store_true", help="small contexts, few repeats")
    parser.add_argument(
        "--source",
        default=str(HERE / "model.gguf.gz"),
        help=f"GGUF file, one in a .gz, a checkpoint's folder, or {CONFIG}: what a kit has of "
        "it, cut out of the cache's file, which is fetched if absent [default: the kit's "
        "model.gguf.gz]",
    )
    parser.add_argument("--only", nargs="+", choices=sorted({*KINDS} - {"box"}), default=[])
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"for everything [default: {MINUTES['gpu']:g}, or {MINUTES['cpu']:g} with --provider "
        "cpu]",
    )
    parser.add_argument("--work", type=Path, help="keep bundles there, and take those that are")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result there")
    parser.add_argument("--show", type=Path, metavar="JSON", help="print such a file and stop")
    parser.add_argument(
        "--plant",
        type=float,
        default=0.0,
        metavar="SIZE",
        help="put an error of so many standard deviations into the logits: the check must fail",
    )
    given = parser.parse_args(argv)
    if given.show is None and given.source != CONFIG and not Path(given.source).exists():
        parser.error(
            f"--source: no file {given.source}; make a kit, name a GGUF file, or give {CONFIG}"
        )
    if given.minutes is None:
        given.minutes = MINUTES[given.provider]
    if not given.minutes > 0:
        parser.error("--minutes must be above 0")
    if given.json is not None and not given.json.resolve().parent.is_dir():
        parser.error(f"--json: no folder {given.json.resolve().parent}")
    if given.json is not None and given.json.is_dir():
        parser.error(f"--json: {given.json} is a folder; name a file in it")
    if given.work is not None and not _is_or_can_be_folder(given.work):
        parser.error(f"--work: {given.work} is a file, or lies in one; name a folder")
    if given.show is not None:
        try:
            given.show = shown(given.show)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or line(error)
            parser.error(f"--show: {given.show}: {reason}")
    return given


def _is_or_can_be_folder(path: Path) -> bool:
    nearest = next(place for place in (path.resolve(), *path.resolve().parents) if place.exists())
    return nearest.is_dir()


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        child(KINDS[argv[1]], Path(argv[2]), Path(argv[3]))
        return 0
    given = parse(argv)
    result: Json | None = given.show
    if result is None:
        if reason := lacking():
            return _nothing(reason)
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
            work = Path(scratch)
            if given.work is not None:  # quick and full ones have other contexts
                work = given.work.resolve() / ("quick" if given.quick else "full")
            try:
                work.mkdir(parents=True, exist_ok=True)
                is_config = given.source == CONFIG and not Path(CONFIG).exists()
                source = sources.cut(work) if is_config else Path(given.source).resolve()
                source = sources.unpacked(source, work)
            except (KitError, OSError, EOFError, zlib.error) as error:
                return _nothing(f"source {given.source}, work {work}: {line(error)}")
            result = check(given, source, work)
    print(render(result))
    return verdict(result)


def _nothing(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
