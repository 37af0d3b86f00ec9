"""What [engines.tensorrt] and [engines.tensorrt-rtx] may say to a run.

    device       which GPU, counted from 0 as CUDA_VISIBLE_DEVICES leaves them; 0
    cuda_graphs  launch calls that come again as CUDA graphs; true

The options of a build stand in the same section and are left alone here.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from specedge.contract import EngineOptions
from specedge.engines.matching import Backend
from specedge.errors import EngineError
from specedge.limits import MAX_VERIFY

_KINDS = {"device": (int, "a whole number"), "cuda_graphs": (bool, "true or false")}
BUILD_OPTIONS = {"tune_for": (1, MAX_VERIFY), "optimization_level": (0, 5)}
"""Least and most; `building.build_options` knows the graph's own bound."""


@dataclass(frozen=True)
class Settings:
    """See above."""

    device: int = 0
    cuda_graphs: bool = True

    @classmethod
    def checked(cls, backend: Backend, given: EngineOptions | None) -> Settings:
        """From what a config says.

        Raises:
            EngineError: an unknown name, or a value of another type.
        """
        said: dict[str, Any] = {}
        for name, value in (given or {}).items():
            if name in BUILD_OPTIONS:
                least, most = BUILD_OPTIONS[name]
                if type(value) is not int or not least <= value <= most:
                    raise EngineError(
                        f"[engines.{backend}] {name} = {value!r}: expected a whole number from "
                        f"{least} to {most}"
                    )
                continue
            if name not in _KINDS:
                known = [*_KINDS, *BUILD_OPTIONS]
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise EngineError(f"[engines.{backend}] has no option {name!r}; {hint}")
            kind, words = _KINDS[name]
            if type(value) is not kind:
                raise EngineError(f"[engines.{backend}] {name} = {value!r}: expected {words}")
            said[name] = value
        return cls(**said)
