"""The result of a check as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpu.running import Json

SHORT = 30  # characters; a reason of no more is no shorter when another place is named
COLUMNS = (1, 2, 4, 5, 8, 16)  # N of a table; the JSON has all
VERDICTS = {
    0: "every correctness part that ran has passed",
    1: "NOT RIGHT: a correctness part failed or did not end, or an engine opens nothing",
    3: "NOTHING COULD BE RUN: no part of specedge was checked or timed on this box",
}
CHECKED = ("logits", "greedy", "accept")  # stages that a correctness part is in


def verdict(result: Json) -> int:
    """The exit code; see the top."""
    records, stages = result["records"], result["stages"]
    ended_badly = any(
        stage["kind"] in CHECKED and stage["seconds"] and stage["status"] != "done"
        for stage in stages
    )
    if ended_badly or any(record["status"] == "failed" for record in records):
        return 1
    by_status = {
        status: {record.get("engine") for record in records if record["status"] == status}
        for status in ("passed", "refused")
    }
    if by_status["passed"] and by_status["refused"] - by_status["passed"]:
        return 1  # an engine that the box has opens none of its bundles
    return 0 if by_status["passed"] else 3


class Reasons:
    """A reason is given once; after that it is said where it stands.

    Args:
        found: what the box has. What is missing there has been described already.
    """

    def __init__(self, found: Json) -> None:
        self._given: dict[str, str] = {}
        for name, part in found.items():
            if isinstance(part, dict) and "missing" in part:
                self._given.setdefault(part["missing"], name)

    def once(self, reason: str, where: str) -> str:
        """`reason`, without what has been given before."""
        for given, place in self._given.items():
            if given in reason and len(given) > SHORT:
                return reason.replace(given, f"see {place}, above")
        self._given.setdefault(reason, where)
        return reason


def tell(stage: Json, records: Sequence[Json], reasons: Reasons) -> None:
    """One line of progress."""
    counts = {status: 0 for status in ("passed", "failed", "measured", "refused", "skipped")}
    for record in records:
        counts[record["status"]] += 1
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    line = f"{stage['seconds']:6.1f} s  {stage['name']}: {stage['status']}"
    line += f" {reasons.once(stage['reason'], stage['name'])}"
    print(f"{line} {f'({said})' if said else ''}".rstrip(), file=sys.stderr, flush=True)


def describe(found: Json) -> str:
    """The box, a line for each part."""
    lines = [f"specedge {found['specedge']}, Python {found['python']}, {found['cpus']} cores"]
    for name in ("gpu", "onnxruntime", "tensorrt", "tensorrt_rtx", "torch"):
        part = found[name]
        if "missing" in part:
            said = f"missing: {part['missing']}"
        else:
            said = ", ".join(f"{key} {_short(value)}" for key, value in part.items())
        lines.append(f"{name:<13} {said}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def render(result: Json) -> str:
    """The whole result as text."""
    records, reasons = result["records"], Reasons(result["box"])
    parts = [describe(result["box"])] if result["box"] else []
    parts.append("\nstages\n" + _table([_stage_row(stage, reasons) for stage in result["stages"]]))
    right = [r for r in records if r["kind"] in CHECKED]
    if right:
        parts.append("\nis it right\n" + _table([_right_row(record, reasons) for record in right]))
    refused = [r for r in records if r["status"] == "refused" and r not in right]
    if refused:
        rows = [
            {
                "stage": r["stage"],
                "case": r["case"],
                "refused": reasons.once(r["reason"], _place(r)),
            }
            for r in refused
        ]
        parts.append("\nrefused\n" + _table(rows))
    notes = {note: _place(r) for r in reversed(records) for note in r["figures"].get("notes", ())}
    if notes:
        rows = [{"first said by": place, "note": note} for note, place in notes.items()]
        parts.append("\nnotes of engines\n" + _table(rows[::-1]))
    points = [row for record in records for row in _curve_rows(record)]
    if points:
        title = "milliseconds of a call of N tokens: median (10 to 90 %)"
        parts.append(f"\n{title}\n" + _table(points))
    speeds = [_speed_row(r) for r in records if "way" in r["figures"]]
    if speeds:
        parts.append("\nplain and speculative in turn\n" + _table(speeds))
    parts.append(f"\n{VERDICTS[verdict(result)]}")
    if any(record["kind"] == "torch" for record in records):
        parts.append("what torch took is a baseline; nothing of specedge is in it")
    if result["provider"] == "cpu":
        parts.append("on the CPU: these figures say nothing of a GPU")
    return "\n".join(parts)


def _place(record: Json) -> str:
    return f"{record['stage']} {record['case']}"


def _stage_row(stage: Json, reasons: Reasons) -> Json:
    time_s = f"{stage['seconds']:.1f} of {stage['budget_s']:.0f} s"
    return {
        "stage": stage["name"],
        "status": stage["status"],
        "time": time_s,
        "host MB": _whole(stage.get("peak_rss_mb")),
        "device MB": _whole(stage.get("peak_device_mb")),
        "reason": reasons.once(stage["reason"], stage["name"]),
    }


def _right_row(record: Json, reasons: Reasons) -> Json:
    figures = record["figures"]
    said = reasons.once(record["reason"], _place(record))
    if "error" in figures:
        error = "of no number" if figures["error"] is None else f"{figures['error']:.2g}"
        said = f"error {error}, bound {figures['bound']:.2g} {said}"
    elif "rounds" in figures:
        said = (
            f"{figures['other_verdicts']} of {figures['rounds']} other; microseconds a round: "
            f"{figures['device_us']:.0f} there, {figures['host_us']:.0f} here {said}"
        )
    elif "runs" in figures:
        said = (
            f"{figures['equal']} of {figures['runs']} equal, {figures['proposed']} drafted {said}"
        )
    return {
        "part": record["stage"],
        "case": record["case"],
        "status": record["status"],
        "device MB": _whole(figures.get("device_mb")),
        "of the engine": _whole(figures.get("engine_mb")),
        "": said,
    }


def _whole(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.0f}"


def _between(median: float, low: float, high: float, samples: int) -> str:
    """A median with its range; of one sample there is none."""
    return f"{median:.2f} ({low:.2f} to {high:.2f})" if samples > 1 else f"{median:.2f}"


def _curve_rows(record: Json) -> Iterator[Json]:
    points = record["figures"].get("points", [])
    for past in sorted({point["past"] for point in points}):
        at = {point["N"]: point for point in points if point["past"] == past}
        row = {"of": f"{record['engine'] or ''} {record['case']}".strip(), "past": str(past)}
        row["calls"] = str(min(point["calls"] for point in at.values()))
        for n in COLUMNS:
            row[f"N={n}"] = ""
            if n in at:
                point = at[n]
                low, high = point["low_ms"], point["high_ms"]
                row[f"N={n}"] = _between(point["ms"], low, high, point["calls"])
        yield row


def _speed_row(record: Json) -> Json:
    figures = record["figures"]
    length = figures["acceptance_length"]
    return {
        "engine": record["engine"],
        "case": record["case"],
        "way": figures["way"],
        "tokens/s": f"{figures['tokens_per_second']:.1f}",
        "over plain": _between(
            figures["ratio"], figures["ratio_low"], figures["ratio_high"], figures["runs"]
        ),
        "tokens a round": "" if length is None else f"{length:.2f}",
        "outside engines": f"{figures['outside_us']:.0f} us a round",
    }


def _table(rows: Sequence[Json]) -> str:
    """Columns as wide as they must be, in the order in which they first occur."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
