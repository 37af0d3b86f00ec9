"""What speculation does to a chat and to a code edit on this machine.

    python bench/demo.py bundles/smollm2-selfdraft

Each prompt is decoded plainly and speculatively in turn, `--repeats` times; the figures are
medians. Prompts alternate, so that no request finds its own prompt in the cache of the one before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import specedge
from specedge.model import Model
from specedge.result import Result

Mode = Literal["off", "auto"]

SETTLE_S = 0.2  # the other model's threads spin for a while after its answer
PROMPTS = Path(__file__).parent / "prompts"


@dataclass(frozen=True)
class Task:
    """One prompt: text to continue as it is, or a question for the chat template."""

    name: str
    file: str
    budget: int
    raw: bool = False
    stop: tuple[str, ...] = ()

    def prompt(self) -> str | list[dict[str, str]]:
        text = (PROMPTS / self.file).read_text(encoding="utf-8")
        return text if self.raw else [{"role": "user", "content": text.strip()}]


TASKS = (
    Task("chat", "chat.md", 200),
    Task("code edit", "edit_60_lines.md", 700, raw=True, stop=("```",)),
)
MODES: tuple[Mode, ...] = ("off", "auto")
NAMES = {"off": "plain", "auto": "speculative"}


def answer(model: Model, task: Task, show: Callable[[str], object]) -> Result:
    """One request, its text shown as it comes."""
    for event in model.stream(task.prompt(), max_tokens=task.budget, stop=task.stop):
        show(event.text)
    assert model.last_result is not None, "the request ended without a result"
    return model.last_result


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def measure(bundle: str, repeats: int, threads: int | None) -> dict[str, dict[Mode, list[Result]]]:
    """Results by prompt and mode; the text of each prompt is printed once, speculatively."""
    results: dict[str, dict[Mode, list[Result]]] = {
        task.name: {mode: [] for mode in MODES} for task in TASKS
    }
    with (
        specedge.load(bundle, speculation="off", threads=threads) as plain,
        specedge.load(bundle, speculation="auto", threads=threads) as speculative,
    ):
        models: dict[Mode, Model] = {"off": plain, "auto": speculative}
        print(f"{plain.bundle.manifest.name} on {plain.engine}")
        for task in TASKS:
            print(f"\n--- {task.name} (bench/{PROMPTS.name}/{task.file})", flush=True)
            answer(speculative, task, show)
            print(flush=True)
        rounds = [task for _ in range(repeats) for task in TASKS]
        for done, task in enumerate(rounds):
            print(f"measuring, {done + 1} of {len(rounds)}: {task.name}", file=sys.stderr)
            for mode, model in models.items():
                time.sleep(SETTLE_S)
                results[task.name][mode].append(answer(model, task, len))
    return results


def median(results: Sequence[Result], name: str) -> float | None:
    values = [getattr(result.metrics, name) for result in results]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def row(name: str, mode: Mode, results: Sequence[Result]) -> str:
    """One line of the table."""
    speed = median(results, "tokens_per_second") or 0.0
    first = median(results, "ttft_ms") or 0.0
    length, rate = median(results, "acceptance_length"), median(results, "acceptance_rate")
    accepted = "" if rate is None else f"{rate:.0%}"
    a_round = "" if length is None else f"{length:.2f}"
    tokens = len(results[0].tokens)
    return (
        f"{name:<10} {NAMES[mode]:<12} {tokens:>6} {speed:>9.1f} {first:>10.0f} ms"
        f" {accepted:>9} {a_round:>12}"
    )


def verdict(name: str, plain: Sequence[Result], speculative: Sequence[Result]) -> str:
    """What speculation did, in one line."""
    before = median(plain, "tokens_per_second") or 0.0
    after = median(speculative, "tokens_per_second") or 0.0
    gain = f"{after / before:.2f}x plain" if before else "no figure"
    ours, theirs = plain[0].tokens, speculative[0].tokens
    if ours == theirs:
        same = "the same text"
    else:
        pairs = enumerate(zip(ours, theirs, strict=False))
        split = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        same = f"another text from token {split} on"
    state = speculative[0].speculation
    return f"{name}: {gain}, {same}; {'on' if state.on else 'off'}: {state.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    results = measure(given.bundle, max(1, given.repeats), given.threads)
    head = f"{'prompt':<10} {'decoding':<12} {'tokens':>6} {'tokens/s':>9} {'first token':>13}"
    print(f"\n{head} {'accepted':>9} {'tokens/round':>12}")
    for name, by_mode in results.items():
        for mode, measured in by_mode.items():
            print(row(name, mode, measured))
    print()
    for name, by_mode in results.items():
        print(verdict(name, by_mode["off"], by_mode["auto"]))


if __name__ == "__main__":
    try:
        main()
    except specedge.SpecedgeError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
