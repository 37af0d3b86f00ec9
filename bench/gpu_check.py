"""What a box with one GPU makes of specedge: right, then how fast. Under 8 minutes, no network.

    PYTHONPATH=site python3 gpu_check.py --json gpu_check.json     # in a kit; see docs/gpu.md
    python bench/gpu_check.py --source FILE.gguf                   # in a checkout
    python bench/gpu_check.py --provider cpu --quick --source FILE.gguf
    python bench/gpu_check.py --show gpu_check.json

First it says what the box has. A runtime that is missing is skipped with its reason. Every stage is
a process of its own with a budget: one that hangs or crashes is reported, what it had measured is
kept, and the rest goes on. `--provider cpu` runs the same stages with engine "cpu" in the place of
the GPU's, so that the script is known to work; its figures say nothing of a GPU. Bundles that lie
in `--work` from an earlier run are taken as they are.

stages    box, export, large export, reference, build, logits, greedy, accept, curves, speed,
          large curves, torch
right     logits: within BOUNDS of the CPU's, over weights that are the same, and greedy ids that
          are the argmax; greedy: the text with speculation is that without, near-ties explained by
          measured noise alone; accept: decided on the device as on the host
JSON      schema 1: box; stages [{name, status, seconds, budget_s, reason, peak_rss_mb,
          peak_device_mb}]; records [{stage, engine, case, status, reason, figures}]; passed.
          A stage is done, out of time, crashed or skipped. A record is passed or failed
          (correctness), measured, refused (an engine did not open the bundle) or skipped.
exit      0: every correctness part that ran has passed, and one did; 1: one failed or did not come
          to its end; 2: wrong usage; 3: nothing of ours could be run
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu import box, cases, deciding, fast, right
from gpu.planning import Asked, Planner
from gpu.report import describe, render, tell, verdict
from gpu.running import Emit, Json, Running, Stage, child, held_back, save

HERE = Path(__file__).resolve().parent
SCHEMA = 1
MINUTES = {"gpu": 7.7, "cpu": 25.0}  # of all stages together

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


def check(given: argparse.Namespace, work: Path) -> Json:
    """Run everything; the result so far is saved after every stage."""
    deadline = time.perf_counter() + given.minutes * 60
    result: Json = {"schema": SCHEMA, "provider": given.provider, "quick": given.quick}
    result |= {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    result |= {"box": {}, "stages": [], "records": []}
    beside: dict[str, Running] = {}
    started: list[Running] = []
    free = _device_memory()

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
        tell(said, records)
        if given.json is not None:
            save(result, given.json)
        return records

    try:
        for record in finish(start(Stage("box", "box", 60))):
            result["box"] = record["figures"]
        if not result["box"]:
            return result
        print(describe(result["box"]), file=sys.stderr, flush=True)
        source = unpacked(given.source.resolve(), work)
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


def unpacked(source: Path, work: Path) -> Path:
    """The GGUF file itself; a .gz is unpacked into `work`."""
    if source.suffix != ".gz":
        return source
    target = work / source.stem
    if not target.exists():
        temporary = target.with_name(f".{target.name}")
        with gzip.open(source, "rb") as packed, temporary.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
        temporary.rename(target)
    return target


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--provider", choices=("gpu", "cpu"), default="gpu", help="what is checked")
    parser.add_argument("--quick", action="store_true", help="small contexts, few repeats")
    parser.add_argument(
        "--source",
        type=Path,
        default=HERE / "model.gguf.gz",
        help="GGUF file, one in a .gz, or a checkpoint's folder",
    )
    parser.add_argument("--only", nargs="+", choices=sorted({*KINDS} - {"box"}), default=[])
    parser.add_argument("--minutes", type=float, help=f"for everything [default: {MINUTES}]")
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
    if given.show is None and not given.source.exists():
        parser.error(f"--source: no file {given.source}; make a kit, or name a GGUF file")
    if given.minutes is None:
        given.minutes = MINUTES[given.provider]
    if given.minutes <= 0:
        parser.error("--minutes must be above 0")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        child(KINDS[argv[1]], Path(argv[2]), Path(argv[3]))
        return 0
    given = parse(argv)
    if given.show is not None:
        result = json.loads(given.show.read_text(encoding="utf-8"))
    elif given.work is not None:
        work = given.work.resolve() / ("quick" if given.quick else "full")  # other contexts
        work.mkdir(parents=True, exist_ok=True)
        result = check(given, work)
    else:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
            result = check(given, Path(work))
    print(render(result))
    return verdict(result)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
