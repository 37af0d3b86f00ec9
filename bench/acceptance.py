"""Time of sampling and acceptance in a round, beside plain numpy and the target's own step.

    python bench/acceptance.py
    python bench/acceptance.py --bundle bundles/qwen2.5-coder --alternatives
    python bench/acceptance.py --narrow-cpu

`accept` is the call that the loop makes after the target's step; `choose` is what a draft model
pays for its K tokens together, its steps left out. Warm: the call before was the same one.
Stepped: the target's forward of K + 1 tokens ran just before `accept`, the draft's of one before
each `choose`, as in the loop; without a bundle both are a sweep through memory. In the worst case
the draft's rows are the target's and all K tokens stand; in the typical one they are these with
noise.

Variants take turns, one round each, `--repeats` times; medians, with the 10th and 90th percentile
of `accept`. With a 1.5B bundle all of it takes half an hour, most of it plain sorts and steps;
--rules, --cuts, --cases and --states take parts. Let nothing else run on the machine. Exit code 1
when ours is over 3 ms with the full vocabulary, or over 1 % of the target's step with top-k or
top-p, or when outputs differ.

--alternatives adds rejection as an ONNX graph and as compiled C, which exist only here. Their
verdicts may differ from float64's where a draw is within 1e-5 of an edge; the farthest is printed.
--narrow-cpu hides vector instructions beyond AVX2 from numpy and the C compiler; the runtime of
the target and of the graph keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from time import perf_counter_ns
from typing import Any

HIDDEN = "NPY_DISABLE_CPU_FEATURES"
RULES = ("greedy", "rejection", "block", "coupled")
CUTS = ("none", "top-k", "top-p", "both")
CASES = ("worst", "typical")
STATES = ("warm", "stepped")
LIMIT_MS = 3.0
LIMIT_SHARE = 0.01
EXACT, FLOAT32 = 1e-9, 1e-5  # allowed distances of a draw from its place


def variants(given: argparse.Namespace, vocab: int) -> list[Any]:
    from acceptance_means import Ours, Plain, Setting

    def setting(rule: Any, cut: str) -> Setting:
        return Setting(rule, cut, given.k, vocab, given.seed, given.temperature)

    chosen: list[Any] = []
    for rule in given.rules:
        for cut in given.cuts if rule != "greedy" else ["none"]:
            chosen += [Ours(setting(rule, cut)), Plain(setting(rule, cut))]
    if not given.alternatives or "rejection" not in given.rules:
        return chosen
    from acceptance_graph import Graph
    from acceptance_kernel import Kernel, compiled

    kernel = compiled(given.narrow_cpu)
    if kernel is None:
        print("no C compiler: the kernel is left out", file=sys.stderr)
    for cut in (cut for cut in ("none", "top-k") if cut in given.cuts):
        for draft_logits in (False, True):
            chosen.append(Graph(setting("rejection", cut), draft_logits, given.threads))
        if kernel is not None:
            chosen.append(Kernel(setting("rejection", cut), kernel))
    return chosen


def one_round(
    means: Any, scene: Any, case: str, stepping: bool, verdict: Any = None
) -> tuple[float, float, Any]:
    """Microseconds of K `choose` and of `accept`, and the verdict; `verdict` commits another."""
    spent = 0
    for place in range(means.setting.k):
        scored = scene.draft(case, place, stepping and means.drafts)
        began = perf_counter_ns()
        token = means.choose(scored, place)
        spent += perf_counter_ns() - began
        means.tokens[place] = token
    means.ready()
    scored = scene.target(stepping)
    began = perf_counter_ns()
    said = means.accept(scored)
    accepted = perf_counter_ns() - began
    if verdict is None:
        means.commit(said)
    return spent / 1e3, accepted / 1e3, said


def check(chosen: list[Any], scene: Any, rounds: int) -> bool:
    """Whether all means say the same on the same draws, the coupled rule left out: plain noise is
    not ours. Rejection is held against float64 laws, the others against each other."""
    import acceptance_plain
    from acceptance_means import rounding

    from specedge.sampling.law import Law

    good = True
    for means in chosen:
        s = means.setting
        if s.rule != "rejection":
            continue
        allowed = EXACT if means.name in ("specedge", "plain numpy") else FLOAT32
        laws = [
            [
                Law.of(row)
                for row in acceptance_plain.probabilities(rows, s.temperature, s.top_k, s.top_p)
            ]
            for rows in (scene.rows, scene.drafts["typical"])
        ]
        far = []
        for _ in range(rounds):
            verdict = one_round(means, scene, "typical", False, verdict="not yet")[2]
            far.append(rounding(means, laws[0], laws[1], verdict))
            means.commit(verdict)
        good &= max(far) <= allowed
        differing = sum(each > 1e-12 for each in far)
        print(
            f"{means.name:<20} {s.cut:<6} {rounds} rounds of rejection, {differing} not as in "
            f"float64, farthest {max(far):.1e}{'' if max(far) <= allowed else '  DIFFERS'}"
        )
    ours = {(m.setting.rule, m.setting.cut): m for m in chosen if m.name == "specedge"}
    for means in chosen:
        rule = means.setting.rule
        if means.name != "plain numpy" or rule not in ("greedy", "block"):
            continue
        other = ours[rule, means.setting.cut]
        for _ in range(rounds):
            verdicts = [one_round(each, scene, "typical", False)[2] for each in (means, other)]
            if verdicts[0] != verdicts[1]:
                good = False
                print(f"{rule}, {means.setting.cut}: {verdicts[0]} and {verdicts[1]}  DIFFERS")
                break
    return good


def measure(given: argparse.Namespace, chosen: list[Any], scene: Any) -> list[dict[str, Any]]:
    """One entry a variant, case and state."""
    runs: dict[tuple[str, str, int], list[tuple[float, float, Any]]] = {}
    for repeat in range(-1, given.repeats):  # the first turn warms up and is not kept
        for state in given.states:
            for case in given.cases:
                for number, means in enumerate(chosen):
                    stepping = state != "warm"
                    if not stepping:
                        one_round(means, scene, case, False)
                    run = one_round(means, scene, case, stepping)
                    if repeat >= 0:
                        runs.setdefault((state, case, number), []).append(run)
        end = "\n" if repeat + 1 == given.repeats else "\r"
        print(f"{repeat + 1}/{given.repeats}", end=end, file=sys.stderr, flush=True)
    entries = []
    for (state, case, number), rounds in runs.items():
        means = chosen[number]
        accept = sorted(run[1] for run in rounds)
        entries.append(
            {
                "state": state,
                "case": case,
                "means": means.name,
                "rule": means.setting.rule,
                "cut": means.setting.cut,
                "accept_us": statistics.median(accept),
                "accept_p10_us": accept[len(accept) // 10],
                "accept_p90_us": accept[-1 - len(accept) // 10],
                "choose_us": statistics.median(run[0] for run in rounds) if means.drafts else None,
                "accepted": statistics.fmean(run[2].n_accepted for run in rounds),
                "over": False,
            }
        )
        limit_ms = LIMIT_MS
        if means.setting.cut != "none" and scene.t_ms is not None:
            limit_ms = LIMIT_SHARE * scene.t_ms
        if means.name == "specedge":
            entries[-1]["over"] = entries[-1]["accept_us"] > limit_ms * 1e3
    return entries


def table(entries: list[dict[str, Any]], t_ms: float | None) -> str:
    """A part for each state and case; microseconds."""
    lines = []
    for state, case in dict.fromkeys((entry["state"], entry["case"]) for entry in entries):
        lines.append(f"\n{state}, {case} case; microseconds")
        lines.append(
            f"{'rule':<10} {'cut':<6} {'means':<20} {'stand':>6} {'accept':>8} "
            f"{'p10':>8} {'p90':>8} {'of T':>7} {'choose':>8}"
        )
        for entry in entries:
            if (entry["state"], entry["case"]) != (state, case):
                continue
            share = f"{entry['accept_us'] / 1e3 / t_ms:.2%}" if t_ms else "-"
            choose = "-" if entry["choose_us"] is None else f"{entry['choose_us']:.0f}"
            lines.append(
                f"{entry['rule']:<10} {entry['cut']:<6} {entry['means']:<20} "
                f"{entry['accepted']:>6.2f} {entry['accept_us']:>8.0f} "
                f"{entry['accept_p10_us']:>8.0f} {entry['accept_p90_us']:>8.0f} {share:>7} "
                f"{choose:>8}{'  over' if entry['over'] else ''}"
            )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", help="take rows and steps from it")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int, default=2, help="of the engines and the graph")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=151_936, help="without a bundle")
    parser.add_argument(
        "--noise",
        type=float,
        help="on the typical draft's logits; default: 1.0, 0.5 without a bundle",
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="of all rules but greedy")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--cuts", nargs="+", choices=CUTS, default=CUTS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--check", type=int, default=100, help="rounds of each that are compared")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alternatives", action="store_true")
    parser.add_argument("--narrow-cpu", action="store_true")
    parser.add_argument("--json", metavar="OUT", help="write the entries there")
    given = parser.parse_args()
    if given.temperature <= 0:
        parser.error("--temperature must be above 0")
    if given.vocab <= 50:
        parser.error("--vocab must be above 50, the k of top-k")
    if given.k < 1 or given.repeats < 1 or given.check < 1:
        parser.error("--k, --repeats and --check must be 1 or more")
    return given


def hide_wide_vectors() -> None:
    """Start again with a numpy that knows no wider vectors than AVX2."""
    from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]
        __cpu_dispatch__,
        __cpu_features__,
    )

    wide = [
        name
        for name in __cpu_dispatch__
        if name.startswith(("AVX512", "X86_V4")) and __cpu_features__[name]
    ]
    environment = {**os.environ, HIDDEN: " ".join(wide)}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> int:
    given = parse()
    if given.narrow_cpu and HIDDEN not in os.environ:
        hide_wide_vectors()
    from acceptance_scene import Scene, Stepped, synthetic

    if given.noise is None:
        given.noise = 1.0 if given.bundle else 0.5
    scene: Scene
    if given.bundle:
        scene = Stepped(
            given.bundle,
            given.k,
            given.noise,
            given.seed,
            engine=given.engine,
            threads=given.threads,
        )
    else:
        scene = synthetic(given.vocab, given.k, given.noise, given.seed)
    try:
        chosen = variants(given, scene.vocab)
        print(f"{scene.description}\nV = {scene.vocab:,}, K = {given.k}, ", end="")
        print(f"temperature {given.temperature}, {given.repeats} repeats")
        if given.narrow_cpu:
            print(f"hidden from numpy: {os.environ[HIDDEN] or 'nothing'}")
        good = check(chosen, scene, given.check)
        entries = measure(given, chosen, scene)
    finally:
        scene.close()
    print(table(entries, scene.t_ms))
    if scene.t_ms is not None:
        print(f"\nT({given.k + 1}) = {scene.t_ms:.1f} ms, median of {len(scene.step_ms)} steps")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"t_ms": scene.t_ms, "options": vars(given), "entries": entries}, file)
    return 0 if good and not any(entry["over"] for entry in entries) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
