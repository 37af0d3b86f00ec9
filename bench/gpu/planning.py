"""Which stages a check has: every engine's correctness before anybody's timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from gpu.box import ENGINES, why_not
from gpu.cases import ON_CPU, ON_GPU, PLANNED, REFERENCES, Case
from gpu.deciding import PROVIDERS
from gpu.running import Json, Stage
from gpu.shape import SHAPE, SMALL

LARGE = "large export"
ON_CPU_SLACK = 4  # a box without a GPU may have two cores and other work
SIZES: Json = {
    "context": 4096,
    "prompts": 2,
    "characters": 4000,  # of a prompt
    "tokens": 64,  # of an output
    "ks": [4, 8],
    "repeats": 5,
    "seconds": 8,  # of a case's cost curves
    "pasts": [128, 1024, 4000],  # of torch
    "samples": 50,
    "vocabularies": [49_152, 151_936],
    "rounds": 100,  # of acceptance
}
QUICK: Json = {
    "context": 512,
    "prompts": 1,
    "characters": 700,
    "tokens": 16,
    "ks": [4],
    "repeats": 2,
    "seconds": 2,
    "pasts": [128],
    "samples": 10,
    "vocabularies": [2048],
    "rounds": 50,
}


@dataclass(frozen=True)
class Asked:
    """What a person wants.

    Args:
        provider: "gpu" or "cpu".
        quick: small sizes and few repeats.
        source: GGUF file.
        work: folder of bundles.
        plant: error to put into logits, in standard deviations; 0: none.
        only: kinds of stages besides those that make bundles; empty: all.
    """

    provider: str
    quick: bool
    source: str
    work: str
    plant: float = 0.0
    only: tuple[str, ...] = ()


class Planner:
    """Stages for what was asked, on a box as `box` found it."""

    def __init__(self, asked: Asked, found: Json) -> None:
        self._asked, self._found = asked, found
        self._on_gpu = asked.provider == "gpu"
        self._cases = ON_GPU if self._on_gpu else ON_CPU
        reasons = {e: why_not(e, found) for e in (ENGINES if self._on_gpu else ("cpu",))}
        self._missing = {engine: why for engine, why in reasons.items() if why is not None}
        self._engines = [engine for engine in reasons if engine not in self._missing]
        self._shape = SMALL if asked.quick else SHAPE
        self._common: Json = {"work": asked.work, "provider": asked.provider, "plant": asked.plant}
        self._common |= QUICK if asked.quick else SIZES
        self._large_name = "small" if asked.quick else "1.5b"
        self._large = [
            replace(case, name=f"{self._large_name}-{case.name}", reference="", draft=False)
            for case in self._cases
            if case.timed
        ]

    def stages(self) -> list[Stage]:
        """All of them; what an engine lacks is said once."""
        listed = [
            Stage(f"engine {engine}", "engine", 0, skip=why)
            for engine, why in self._missing.items()
        ]
        if self._engines:
            listed += self._of_engines()
        listed.append(Stage("torch", "torch", 40, self._request(None, ()), self._no_torch))
        if not self._on_gpu:
            listed = [replace(stage, budget_s=stage.budget_s * ON_CPU_SLACK) for stage in listed]
        if not self._asked.only:
            return listed
        kept = {"engine", "export", "reference", "build", *self._asked.only}
        listed = [stage for stage in listed if stage.kind in kept]
        timed = any(stage.kind in ("curves", "speed") for stage in listed)
        return [stage for stage in listed if timed or not stage.name.startswith("large")]

    def _of_engines(self) -> list[Stage]:
        deciding = [engine for engine in self._engines if engine in PROVIDERS]
        planned = [engine for engine in self._engines if engine in PLANNED]
        listed = [
            *self._bundles(),
            *self._each("build", "build", 120, self._cases, planned),
            *self._each("logits", "logits", 80, self._cases),
            *self._each("greedy", "greedy", 60, self._cases),
            *self._each("accept", "accept", 30, (), deciding),
        ]
        # from here on nothing runs beside what is timed
        for kind, budget in (("curves", 60), ("speed", 60)):
            listed += self._each(kind, kind, budget, self._cases, needs=LARGE)
        listed += self._each("large build", "build", 120, self._large, planned, needs=LARGE)
        return listed + self._each("large curves", "curves", 80, self._large, needs=LARGE)

    def _bundles(self) -> list[Stage]:
        source, work = self._asked.source, self._asked.work
        drawn = self._request(None, self._large) | {"shape": self._shape}
        drawn["source"] = f"{work}/{self._large_name}"
        every = list({case.name: case for case in (*REFERENCES, *self._cases)}.values())
        real = self._request(None, every) | {"source": source}
        return [
            Stage(LARGE, "export", 200, drawn, beside=True),
            Stage("export", "export", 120, real),
            Stage("reference", "reference", 40, self._request(None, REFERENCES)),
        ]

    def _each(
        self,
        name: str,
        kind: str,
        budget_s: float,
        cases: Sequence[Case],
        engines: Sequence[str] | None = None,
        needs: str | None = None,
    ) -> list[Stage]:
        """A stage for each engine, with the cases it can run."""
        listed = []
        for engine in self._engines if engines is None else engines:
            both = engine in ("cpu", "cuda")  # of lowerings
            chosen = [case for case in cases if both or case.lowering == "standard"]
            if kind in ("greedy", "curves", "speed"):
                chosen = [case for case in chosen if case.timed]
            request = self._request(engine, chosen)
            listed.append(Stage(f"{name} {engine}", kind, budget_s, request, needs=needs))
        return listed

    def _request(self, engine: str | None, cases: Sequence[Case]) -> Json:
        said = {"engine": engine, "cases": [asdict(case) for case in cases], "shape": None}
        return self._common | said | ({} if cases else {"shape": self._shape})

    @property
    def _no_torch(self) -> str | None:
        torch = self._found["torch"]
        if "missing" in torch:
            return f"torch: {torch['missing']}"
        return "torch sees no GPU" if self._on_gpu and not torch["sees_gpu"] else None
