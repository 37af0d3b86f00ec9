"""A bundle as a model of an NVIDIA Triton model repository (python backend).

    REPOSITORY/NAME/config.pbtxt
    REPOSITORY/NAME/1/model.py      as packaged, see `specedge.export.triton.model`
    REPOSITORY/NAME/1/bundle/       a link, or a copy of the files that the manifest lists, of what
                                    was measured (`probes/`), and of plans where an engine runs them

The model appears whole or not at all. What a load may be asked for is checked here, so that a
mistake is found before a server starts.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from specedge.bundle import Bundle
from specedge.canary.watching import checked_share
from specedge.contract import MANIFEST
from specedge.errors import ExportError, OptionError
from specedge.export.staging import absent_parents, failure, remove_empty
from specedge.export.triton.model import BUNDLE, load_options
from specedge.load_options import LoadOptions, check_threads
from specedge.memory import checked_memory
from specedge.opening import Opener
from specedge.probe import record
from specedge.replacing import folder_beside, replace_folder

CONFIG = "config.pbtxt"
VERSION = "1"
MAX_INSTANCES = 64
PLANS = "plans"  # of `specedge build`, beside a bundle's own files
_ERRNO = re.compile(r"\[Errno \d+\] (.*?)(: [\"'].*)?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_INPUTS = (("prompt", "STRING"), ("messages", "STRING"), ("options", "STRING"), ("stream", "BOOL"))
_OUTPUTS = (
    ("text", "STRING"),
    ("finish_reason", "STRING"),
    ("result", "STRING"),
    ("sample", "INT32"),
)


def write_repository(
    bundle_path: str | Path,
    repository: str | Path,
    *,
    name: str | None = None,
    parameters: Mapping[str, str] | None = None,
    instances: int = 1,
    link: bool = False,
    force: bool = False,
) -> Path:
    """Write the model and return its folder.

    Args:
        bundle_path: opened and hash-checked first.
        repository: made if it is not there.
        name: of the model; None: the bundle's.
        parameters: how the server loads the bundle, keywords of `specedge.load` as text:
            {"engine": "cuda", "speculation": "on", "proposers": "ngram"}.
        instances: processes, each with a copy of the weights in memory.
        link: refer to the bundle where it is, by its absolute path.
        force: replace a model that this function wrote.

    Raises:
        BundleError: see `Bundle.open`.
        OptionError: a parameter, or the number of instances, that a load would refuse.
        EngineError: an engine that is none, does not run the bundle's graphs, or does not know an
            option of the bundle's [engines.NAME].
        ExportError: a name that cannot be used, a destination that is taken or cannot be written.
    """
    bundle = Bundle.open(bundle_path)
    name = bundle.manifest.name if name is None else name
    if not _NAME.fullmatch(name):
        raise ExportError(
            f"triton: expected a model name of letters, digits, '_', '-' and '.', found {name!r}; "
            "give another name"
        )
    if not 1 <= instances <= MAX_INSTANCES:
        raise OptionError(f"instances: expected 1..{MAX_INSTANCES}, found {instances}")
    said = dict(parameters or {})
    opener = _checked(bundle, load_options(said))
    output = Path(repository) / name
    try:
        _check_destination(output, force)
        absent = absent_parents(output)
    except (OSError, ValueError) as error:  # a name that is too long
        raise failure(output, error) from error
    files = {CONFIG: config_text(name, said, instances), f"{VERSION}/model.py": _model_text()}
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = folder_beside(output)
        try:
            (folder / VERSION).mkdir()
            for place, text in files.items():
                (folder / place).write_text(text, encoding="utf-8", newline="\n")
            place_of_bundle = folder / VERSION / BUNDLE
            if link:
                place_of_bundle.symlink_to(bundle.path, target_is_directory=True)
            else:
                measured = (record.FOLDER, PLANS) if opener.runs_plans else (record.FOLDER,)
                shutil.copytree(bundle.path, place_of_bundle, ignore=_all_but(bundle, measured))
            replace_folder(folder, output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except shutil.Error as error:  # of a copy: a list of what failed, each with its own words
        reason = str(error.args[0][0][2])
        found = _ERRNO.fullmatch(reason)
        raise failure(output, ValueError(found[1] if found else reason)) from error
    except OSError as error:
        raise failure(output, error) from error
    finally:
        remove_empty(absent)
    return output


def config_text(name: str, parameters: Mapping[str, str], instances: int) -> str:
    """config.pbtxt, a `ModelConfig` as protobuf text."""
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        "max_batch_size: 0",
        "model_transaction_policy { decoupled: true }",
    ]
    lines += [
        f'input {{ name: "{each}" data_type: TYPE_{kind} dims: [ 1 ] optional: true }}'
        for each, kind in _INPUTS
    ]
    lines += [
        f'output {{ name: "{each}" data_type: TYPE_{kind} dims: [ 1 ] }}' for each, kind in _OUTPUTS
    ]
    lines.append(f"instance_group {{ count: {instances} kind: KIND_CPU }}")
    lines += [
        f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"
        for key, value in parameters.items()
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # escapes of C, which protobuf text reads too


def _checked(bundle: Bundle, options: Mapping[str, Any]) -> Opener:
    """What opens the bundle's engines in the server.

    Raises:
        OptionError, EngineError: `specedge.load` would refuse it on any machine.
    """
    plan = ("speculation", "draft_length", "proposers", "context", "draft_engine")
    asked = LoadOptions.checked(bundle.manifest, **{key: options.get(key) for key in plan})
    check_threads(options.get("threads"))
    checked_memory(options.get("memory"))
    checked_share(options.get("canary", 0.0))
    return Opener(
        bundle,
        options.get("engine", "auto"),
        options.get("threads"),
        asked.context,
        options.get("exact", True),
        options.get("draft_engine"),
    )


def _all_but(bundle: Bundle, folders: Iterable[str]) -> Callable[[str, list[str]], set[str]]:
    """For `copytree`: ignores all but what the manifest lists and these folders."""
    wanted = [MANIFEST, *bundle.manifest.files]
    whole = set(folders)

    def ignored(folder: str, names: list[str]) -> set[str]:
        here = Path(folder).relative_to(bundle.path)

        def leads_nowhere(name: str) -> bool:
            place = (here / name).as_posix()
            return place.partition("/")[0] not in whole and not any(
                each == place or each.startswith(f"{place}/") for each in wanted
            )

        return set(filter(leads_nowhere, names))

    return ignored


def _model_text() -> str:
    return resources.files("specedge.export.triton").joinpath("model.py").read_text("utf-8")


def _check_destination(output: Path, force: bool) -> None:
    if not output.exists() and not output.is_symlink():
        return
    ours = (output / CONFIG).is_file() and (output / VERSION / BUNDLE / MANIFEST).is_file()
    if not ours:
        raise ExportError(
            f"{output}: exists and is not a model that specedge wrote; choose another name or "
            "remove it"
        )
    if not force:
        raise ExportError(
            f"{output}: a model is there already; pass --force to replace it, or "
            "name another repository"
        )
