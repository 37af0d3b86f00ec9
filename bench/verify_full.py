"""The full equality matrices: does speculation ever change a greedy text?

    python bench/verify_full.py [BUNDLE ...] [--quick] [--output docs/equality.md]

Tiny random models of every family, and SmolLM2: every proposer, draft length and kind of prompt
length, each text held against plain decoding by the same engine. Then all of it again with the
narrow kernels (`exact=False`), to show what the exact widths are there for. BUNDLE adds bundles of
your own. Exits with 1 when a text differed that must not.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import equality_cases as cases  # noqa: E402
import real  # noqa: E402
from specedge.contract import Ids  # noqa: E402
from specedge.doctor import INSTRUCTIONS  # noqa: E402
from specedge.engines import slotted  # noqa: E402
from specedge.engines.base import Engine  # noqa: E402
from specedge.loading import load  # noqa: E402
from tiny_exports import TinyExports, read_manifest  # noqa: E402

Prompts = dict[str, Ids]
Combination = tuple[int, cases.ProposerSet]


@dataclass
class Count:
    """Texts held against plain decoding."""

    compared: int = 0
    equal: int = 0
    drafted: int = 0
    accepted: int = 0
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.equal} of {self.compared}"


@dataclass
class Row:
    """One bundle."""

    name: str
    precision: str
    step: int
    claims_exact: bool  # the engine said at load that widths agree
    exact_noise: float
    exact: Count
    narrow_noise: float
    narrow: Count
    margin: float

    @property
    def broken(self) -> bool:
        """Full precision always has to be equal, quantised weights where the engine says so."""
        differs = bool(self.exact.differences)
        return (differs and self.precision == "fp32") or (
            self.claims_exact and (differs or self.exact_noise > 0)
        )

    def cells(self) -> tuple[str, ...]:
        kept = self.exact.accepted / self.exact.drafted if self.exact.drafted else 0.0
        return (
            self.name,
            self.precision,
            str(self.step),
            f"{self.exact_noise:.2g}",
            str(self.exact),
            f"{kept:.0%} of {self.exact.drafted}",
            str(self.narrow),
            f"{self.narrow_noise:.2g}",
            f"{self.margin:.2g}",
        )


HEADS = (
    "bundle",
    "target",
    "width step",
    "noise",
    "equal",
    "drafts kept",
    "equal, narrow",
    "noise, narrow",
    "smallest margin",
)


def compare(
    pair: cases.Pair,
    prompts: Prompts,
    combinations: Iterable[Combination],
    budget: int | None,
    plain: dict[str, cases.Run],
) -> Count:
    """Every combination on every prompt; `plain` takes in the plain texts."""
    count = Count()
    plain |= {name: cases.run(pair.target, ids, max_tokens=budget) for name, ids in prompts.items()}
    for k, which in combinations:
        for name, ids in prompts.items():
            got = cases.run(pair.target, ids, k, pair.proposers(which), budget)
            want = plain[name].tokens
            count.compared += 1
            count.equal += got.tokens == want
            count.drafted += got.metrics.proposed
            count.accepted += got.metrics.accepted
            if got.tokens != want:
                at = cases.first_difference(got.tokens, want)
                count.differences.append(f"prompt {name}, K = {k}, {which}: from token {at} on")
    return count


def examine(
    name: str,
    bundle: Path,
    prompts: Callable[[int], Prompts],
    lengths: Iterable[int],
    *,
    context: int | None = None,
    budget: int | None = None,
) -> Row:
    """One bundle, with exact and with narrow kernels."""
    manifest = read_manifest(bundle)
    sets = cases.PROPOSER_SETS if manifest.draft is not None else ("ngram",)
    combinations = [(k, which) for k in lengths for which in sets]
    plain: dict[str, cases.Run] = {}
    texts = prompts(manifest.target.vocab)
    with cases.opened(bundle, context) as pair:
        target = pair.target
        exact = compare(pair, texts, combinations, budget, plain)
        margin = min(
            cases.smallest_margin(target, texts[n], run.tokens) for n, run in plain.items()
        )
        step, claims_exact = target.width_step, target.width_noise == 0
        exact_noise = noise_over(target, texts, plain)
    with cases.opened(bundle, context, exact=False) as pair:
        narrow = compare(pair, texts, combinations, budget, plain)
        noise = noise_over(pair.target, texts, plain)
    scheme = manifest.quality["target"].rounding if "target" in manifest.quality else "fp32"
    row = Row(name, scheme, step, claims_exact, exact_noise, exact, noise, narrow, margin)
    print(" | ".join(row.cells()), file=sys.stderr, flush=True)
    return row


def noise_over(target: Engine, texts: Prompts, plain: dict[str, cases.Run]) -> float:
    """Of the engine's own measurement, and over the plain texts."""
    seen = (cases.noise_between_widths(target, texts[n], run.tokens) for n, run in plain.items())
    return max(target.width_noise, *seen)


def tiny_rows(lengths: Iterable[int], prompt_lengths: Iterable[int]) -> Iterator[Row]:
    """Every family; the prefill chunk is narrowed, so that short prompts have several."""
    wide, slotted.PREFILL_CHUNK = slotted.PREFILL_CHUNK, cases.CHUNK
    with tempfile.TemporaryDirectory() as folder:
        exports = TinyExports(Path(folder))
        for case in cases.CASES:
            for pair in cases.PAIRS:
                _, bundle = cases.tiny_bundle(exports, case, pair)

                def prompts(vocab: int) -> Prompts:
                    return {f"of {n}": cases.tiny_prompt(n, vocab) for n in prompt_lengths}

                yield examine(f"{case}, {pair}", bundle, prompts, lengths)
    slotted.PREFILL_CHUNK = wide


def real_row(bundle: Path, lengths: Iterable[int], budget: int, prompts: Iterable[str]) -> Row:
    """A bundle of a real model, on texts that people write."""
    with load(bundle, speculation="off") as model:
        ids = {
            name: model.encode([{"role": "user", "content": real.PROMPTS[name]}])[0]
            for name in prompts
        }
    context = min(read_manifest(bundle).target.context, max(map(len, ids.values())) + budget + 1)
    return examine(bundle.name, bundle, lambda _: ids, lengths, context=context, budget=budget)


def machine() -> str:
    """Processor, its instructions, interpreter: widths depend on the first two."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    flags = set(said.get("flags", said.get("Features", "")).split())
    known = [name for name in INSTRUCTIONS if name in flags]
    return (
        f"{said.get('model name', platform.machine())} ({', '.join(known) or 'no extensions'}), "
        f"Python {platform.python_version()}"
    )


def page(rows: list[Row], command: str, engine: str, minutes: float) -> str:
    """docs/equality.md."""
    total = Count(sum(r.exact.compared for r in rows), sum(r.exact.equal for r in rows))
    without = Count(sum(r.narrow.compared for r in rows), sum(r.narrow.equal for r in rows))
    lines = [
        "# Equality",
        "",
        "Greedy text with speculation, held against plain decoding by the same engine, token for",
        "token, up to the last row of the context or the output budget.",
        "",
        f"Made by `{command}` on {datetime.now(UTC):%Y-%m-%d} in {minutes:.0f} minutes: {engine}; "
        f"{machine()}.",
        "",
        f"**{total} texts are equal.** With the narrow kernels (`exact=False`) {without} are.",
        "",
        "- width step: calls are padded to a multiple of it, because those agree to the bit here",
        "- noise: largest difference of a logit between calls of 1, 2 and 5 tokens and of 16, over",
        "  the plain texts; narrow: without padding",
        "- drafts kept: share of the drafted tokens that were accepted; all others were refused",
        "- smallest margin: least distance from the best logit to the second in the plain texts; a",
        "  text may change where the noise comes near it",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
        "",
    ]
    wrong = [f"- {row.name}: {said}" for row in rows for said in row.exact.differences]
    if wrong:
        lines += ["## Texts that differ", "", *wrong, ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE")
    parser.add_argument("--quick", action="store_true", help="a tenth of it, to try the script")
    parser.add_argument("--no-tiny", action="store_true", help="real models only")
    parser.add_argument("--budget", type=int, default=128, help="tokens of a real text")
    parser.add_argument("--output", type=Path, help="write the page here")
    given = parser.parse_args()
    began = time.monotonic()
    lengths = (1, 15) if given.quick else cases.LENGTHS
    prompt_lengths = (1, cases.CONTEXT - 20) if given.quick else cases.TINY_LENGTHS
    budget = min(given.budget, 24) if given.quick else given.budget
    prompts = list(real.PROMPTS)[: 1 if given.quick else None]

    rows = [] if given.no_tiny else list(tiny_rows(lengths, prompt_lengths))
    shipped = [real.bundle(name) for name in real.BUNDLES]
    for bundle in (*shipped, *given.bundles):
        rows.append(real_row(bundle, lengths, budget, prompts))
    with load(shipped[0], speculation="off") as model:
        engine = model.engine
    options = ["--quick"] * given.quick + ["--no-tiny"] * given.no_tiny
    names = [bundle.name for bundle in given.bundles]
    command = " ".join(["python bench/verify_full.py", *names, *options])
    text = page(rows, command, engine, (time.monotonic() - began) / 60)
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")
    print(text)
    return int(any(row.broken for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
