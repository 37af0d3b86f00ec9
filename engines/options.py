"""[engines.NAME] of a config, held against what that engine knows; no runtime is imported.

An export checks it, so that a bundle cannot carry what every load would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

from specedge.contract import EngineOptions
from specedge.engines import matching, ort_options


def check(sections: Mapping[str, EngineOptions]) -> None:
    """Raises EngineError for an option that an engine does not know.

    Args:
        sections: by name of the engine.
    """
    for name, provider in matching.PROVIDERS.items():
        ort_options.split(provider, sections.get(name))
    for backend in matching.PLANNED:
        if backend in sections:
            from specedge.engines.trt.options import Settings

            Settings.checked(backend, sections[backend])


def device(name: str, options: EngineOptions | None) -> int | None:
    """The GPU that an engine computes on, counted from 0; None: it computes on the CPU."""
    if name not in matching.ON_GPU:
        return None
    found = (options or {}).get("device" if name in matching.PLANNED else "device_id", 0)
    return int(found)
