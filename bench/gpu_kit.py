"""All that a GPU box without network needs to run gpu_check.py, in a folder and a tar file.

    python bench/gpu_kit.py build/gpu-kit
    python bench/gpu_kit.py build/gpu-kit --with-onnxruntime-gpu onnxruntime_gpu-1.31.1-….whl

OUT/            README.md, gpu_check.py, gpu/, kit.json (bytes and sha256 of every file)
    wheels/     specedge and what such a box lacks; it is taken to have torch, numpy, onnx,
                onnxruntime and safetensors
    prompts/    what is decoded
    model.gguf.gz  the first layers of SmolLM2: a graph with real weights, not a model to talk to
OUT.tar         the same in one file
OUT-pieces/     a wheel too large to travel whole, in pieces that travel apart; with pieces.json

The kit weighs at most `--limit-mb`, each piece less than `--piece-mb`; more is an error.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu.pieces import CHUNK, KitError, replace, sha256, split
from gpu.sources import CONFIG, EMBEDDING, LAYERS, of_config, truncate

HERE = Path(__file__).resolve().parent
MB = 1_000_000
LIMIT_MB = 64
PIECE_MB = 59
PROMPTS = ("edit_60_lines.md", "chat.md")
WHEELS = (
    *("annotated-types", "click", "gguf", "jinja2", "markdown-it-py", "markupsafe", "mdurl"),
    *("ml-dtypes", "onnx-ir", "pydantic", "pygments", "pyyaml", "rich", "tokenizers", "tqdm"),
    *("typing-extensions", "typing-inspection"),  # pydantic-core: at the version pydantic asks for
)
PLATFORMS = ("2_28", "2_27", "2_17", "2_12", "2_5")
COMPILED = shutil.ignore_patterns("__pycache__")
PACKAGED = ("specedge", "export", "engines", "configs")

README = """# GPU check of specedge

No network is needed. In this folder, with Python {python} on Linux x86-64:

    python3 -m pip install --no-index --no-deps --upgrade --target site wheels/*.whl
    PYTHONPATH=site python3 gpu_check.py --json gpu_check.json
    PYTHONPATH=site python3 gpu_check.py --show gpu_check.json

The second takes under 8 minutes and says what the box has before it measures anything. A part
whose runtime is missing is skipped with its reason. With `--provider cpu --quick` it runs the same
stages on the processor, in a few minutes.

The box brings PyTorch, numpy, onnx (with sympy), ONNX Runtime and safetensors. With none of ONNX
Runtime for GPUs, TensorRT and TensorRT-RTX nothing of specedge runs on its GPU, and the check says
so.

ONNX Runtime for GPUs can travel in pieces ({pieces}). It must be the only ONNX Runtime:

    python3 -m gpu.pieces pieces wheels-gpu
    python3 -m pip uninstall --yes onnxruntime
    python3 -m pip install --no-index --no-deps --upgrade --target site wheels-gpu/*.whl

`model.gguf.gz` holds the first {layers} layers of SmolLM2-135M-Instruct (Apache-2.0) as they are in
the source, and its embedding table in {embedding}. Its text means nothing: it is there so that real
weights go through every kernel.
"""


def weigh(folder: Path) -> dict[str, int]:
    """Bytes of every file, by its path inside the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def check_weight(sizes: dict[str, int], limit: int) -> int:
    """The sum of `sizes`. Raises KitError where it is above `limit` bytes."""
    total = sum(sizes.values())
    if total > limit:
        name, largest = max(sizes.items(), key=lambda item: item[1])
        raise KitError(
            f"kit: expected at most {limit / MB:.1f} MB, found {total / MB:.1f} MB, {name} being "
            f"{largest / MB:.1f} of it; use fewer --layers"
        )
    return total


def compress(path: Path) -> Path:
    """Replace a file by its gzip, which takes 8 % off quantised weights."""
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as raw, gzip.GzipFile(packed, "wb", mtime=0) as file:
        shutil.copyfileobj(raw, file, CHUNK)
    path.unlink()
    return packed


def fetch_wheels(folder: Path, python: str, names: Sequence[str] = WHEELS) -> None:
    """Download wheels for Linux x86-64 and that Python, exactly those named, with pip.

    pydantic works with one version of pydantic-core, which its metadata names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [f"--platform=manylinux_{name}_x86_64" for name in PLATFORMS]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]

    def download(*options: str) -> None:
        _pip(
            "download",
            *("--only-binary=:all:", f"--python-version={python}", "--implementation=cp"),
            *(*platforms, f"--dest={folder}", *options),
        )

    download("--no-deps", *(name for name in names if name != "pydantic"))
    if "pydantic" in names:
        download("pydantic>=2.7,<3")
    versions: dict[str, list[Path]] = {}
    for path in folder.glob("*.whl"):
        versions.setdefault(path.name.split("-")[0].lower(), []).append(path)
    twice = [name for name, paths in versions.items() if len(paths) > 1]
    if twice:
        raise KitError(f"{folder}: expected one version of each, found two of {', '.join(twice)}")


def build_wheel(folder: Path, root: Path = HERE.parent) -> None:
    """specedge's own wheel, built outside the checkout so that nothing stale gets in."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in PACKAGED:
            shutil.copytree(root / name, Path(scratch) / name, ignore=COMPILED)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(root / name, scratch)
        _pip("wheel", "--no-deps", f"--wheel-dir={folder}", scratch)


def _pip(verb: str, *options: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no reason given"]
        raise KitError(f"pip {verb}: {said[-1]}; check the package index")


def make(given: argparse.Namespace) -> Iterator[str]:
    """Write the kit; yields what a person should know. Raises KitError."""
    output: Path = given.output
    if output.exists() and any(output.iterdir()) and not (output / "kit.json").exists():
        raise KitError(f"{output}: expected an empty folder or an older kit; choose another")
    staging = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        shutil.copy(HERE / "gpu_check.py", staging)
        shutil.copytree(HERE / "gpu", staging / "gpu", ignore=COMPILED)
        (staging / "prompts").mkdir()
        for name in PROMPTS:
            shutil.copy(HERE / "prompts" / name, staging / "prompts")
        source = of_config(CONFIG) if given.source is None else given.source
        truncate(source, staging / "model.gguf", given.layers, given.embedding)
        compress(staging / "model.gguf")
        if not given.no_wheels:
            fetch_wheels(staging / "wheels", given.python)
            build_wheel(staging / "wheels")
        pieces = _pieces(given)
        said = {
            "python": given.python,
            "layers": given.layers,
            "embedding": "its own form" if given.embedding == "keep" else given.embedding,
            "pieces": f"{len(pieces)} in this one" if pieces else "none in this one",
        }
        (staging / "README.md").write_text(README.format(**said), encoding="utf-8")
        hashes = {
            name: {"bytes": size, "sha256": sha256(staging / name)}
            for name, size in weigh(staging).items()
        }
        text = json.dumps({"schema": 1, **said, "files": hashes}, indent=1)
        (staging / "kit.json").write_text(text, encoding="utf-8")
        sizes = weigh(staging)
        total = check_weight(sizes, int(given.limit_mb * MB))
        if output.exists():
            shutil.rmtree(output)
        staging.rename(output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    archive = output.with_name(output.name + ".tar")
    replace(archive, lambda path: _tar(output, path))
    for name, size in sizes.items():
        yield f"{size / MB:8.2f} MB  {name}"
    yield f"{total / MB:8.2f} MB  {output}, and {archive.stat().st_size / MB:.2f} MB as {archive}"
    for piece in pieces:
        yield f"{piece.stat().st_size / MB:8.2f} MB  {piece}, to travel apart"


def _pieces(given: argparse.Namespace) -> list[Path]:
    wheel: Path | None = given.with_onnxruntime_gpu
    if wheel is None:
        return []
    if wheel.is_dir():
        found = sorted(wheel.glob("onnxruntime_gpu-*.whl"))
        if len(found) != 1:
            raise KitError(f"{wheel}: expected one onnxruntime_gpu-*.whl, found {len(found)}")
        wheel = found[0]
    folder = given.output.with_name(given.output.name + "-pieces")
    return split(wheel, folder, int(given.piece_mb * MB))


def _tar(folder: Path, path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add(folder, arcname=folder.name)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--embedding", default=EMBEDDING, help="how its table is packed, or keep")
    parser.add_argument("--source", type=Path, metavar="FILE.gguf", help="instead of SmolLM2's")
    parser.add_argument("--python", default="3.12", help="of the box")
    parser.add_argument("--no-wheels", action="store_true", help="for a box that has specedge")
    parser.add_argument("--with-onnxruntime-gpu", type=Path, metavar="WHEEL", help="or its folder")
    parser.add_argument("--limit-mb", type=float, default=LIMIT_MB, help="of the kit, in 10^6 B")
    parser.add_argument("--piece-mb", type=float, default=PIECE_MB, help="of each piece")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        for line in make(parse(argv)):
            print(line)
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"error: {error}; run make install, and .venv/bin/python here", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
