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
SIZES: Json = {
    "context": 4096,
    "prompts": 2,
    "characters": 4000,  # of a prompt
    "tokens": 64,  # of an output
    "ks": [4, 8],
    "repeats": 5,
    "seconds": 8,  # of each cost curve
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
        self._engines = ENGINES if self._on_gpu else ("cpu",)
        self._reasons = {engine: why_not(engine, found) for engine in self._engines}
        able = None in self._reasons.values()
        self._nobody = None if able else "no engine of specedge can run here"
        self._shape = SMALL if asked.quick else SHAPE
        self._common: Json = {"work": asked.work, "provider": asked.provider, "plant": asked.plant}
        self._common |= QUICK if asked.quick else SIZES
        self._large = [
            replace(case, name=f"1.5b-{case.name}", reference="", draft=False)
            for case in self._cases
            if case.timed
        ]

    def stages(self) -> list[Stage]:
        listed = [*self._bundles()]
        if self._on_gpu:
            listed += self._each("build", "build", 90, self._cases, PLANNED)
        listed += self._each("logits", "logits", 60, self._cases)
        listed += self._each("greedy", "greedy", 60, self._cases)
        listed += self._each(
            "accept", "accept", 30, (), [e for e in self._engines if e in PROVIDERS]
        )
        # from here on nothing runs beside what is timed
        for kind, budget in (("curves", 50), ("speed", 60)):
            listed += self._each(kind, kind, budget, self._cases, needs=LARGE)
        if self._on_gpu:
            listed += self._each("large build", "build", 120, self._large, PLANNED, needs=LARGE)
        listed += self._each("large curves", "curves", 60, self._large, needs=LARGE)
        listed.append(Stage("torch", "torch", 40, self._request(None, ()), self._no_torch))
        kept = {"export", "reference", "build", *self._asked.only}
        if self._asked.only:
            listed = [stage for stage in listed if stage.kind in kept]
        timed = any(stage.kind in ("curves", "speed") for stage in listed)
        return [stage for stage in listed if timed or not stage.name.startswith("large")]

    def _bundles(self) -> list[Stage]:
        source, work = self._asked.source, self._asked.work
        drawn = self._request(None, self._large) | {"source": f"{work}/1.5b", "shape": self._shape}
        every = list({case.name: case for case in (*REFERENCES, *self._cases)}.values())
        real = self._request(None, every) | {"source": source}
        return [
            Stage(LARGE, "export", 200, drawn, self._nobody, beside=True),
            Stage("export", "export", 120, real, self._nobody),
            Stage("reference", "reference", 40, self._request(None, REFERENCES), self._nobody),
        ]

    def _each(
        self,
        name: str,
        kind: str,
        budget_s: float,
        cases: Sequence[Case],
        engines: Sequence[str] = (),
        needs: str | None = None,
    ) -> list[Stage]:
        """A stage for each engine, with the cases it can run."""
        listed = []
        for engine in engines or self._engines:
            both = engine in ("cpu", "cuda")  # of lowerings
            chosen = [case for case in cases if both or case.lowering == "standard"]
            if kind in ("greedy", "curves", "speed"):
                chosen = [case for case in chosen if case.timed]
            request = self._request(engine, chosen)
            skip = self._reasons[engine]
            listed.append(Stage(f"{name} {engine}", kind, budget_s, request, skip, needs=needs))
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
