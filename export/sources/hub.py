"""A repository of the Hugging Face hub, fetched as a checkpoint folder.

`huggingface_hub` is the extra [hub] and is imported here only; its own cache keeps the files.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from specedge.errors import SourceError
from specedge.export.checkpoint import Checkpoint
from specedge.export.sources.folder import open_folder
from specedge.progress import Progress, Silent

_WANTED = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.*",
]


def open_hub(
    name: str,
    *,
    sha256: str | None = None,
    licence: str | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Fetch OWNER/NAME, or OWNER/NAME@REVISION, and open it.

    Raises:
        SourceError: the extra is not installed, the hub cannot be reached and the cache does not
            have the files, or the repository does not exist; and what `open_folder` raises.
    """
    progress = progress or Silent()
    repository, _, revision = name.partition("@")
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise SourceError(
            f"hub:{name}: huggingface_hub is not installed; pip install 'specedge[hub]', or give "
            "a local folder"
        ) from None
    progress.stage(f"fetching hub:{name}")
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=_WANTED
        )
    except HFValidationError as error:
        raise SourceError(f"hub:{name}: expected OWNER/NAME: {_first_line(error)}") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        # Offline, unknown, gated and a full disk all arrive as one of these.
        raise SourceError(
            f"hub:{name}: not fetched: {_first_line(error)}; check the name and the network, or "
            "give a local folder"
        ) from error
    opened = open_folder(Path(folder), sha256=sha256, licence=licence, progress=progress)
    progress.note(f"hub:{name}: licence {licence or 'not stated in the config'}")
    record = opened.record.model_copy(update={"kind": "hub", "reference": f"hub:{name}"})
    return dataclasses.replace(opened, record=record)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
