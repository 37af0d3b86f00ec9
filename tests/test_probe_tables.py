"""What a probe found, as tables of a terminal 80 columns wide."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import report_samples as samples
from specedge.cli._probe_tables import decision_table, probe_tables, verdict_lines
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.findings import Estimate
from specedge.words import three_digits


def lines_of(table):
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0.0123, "0.01"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (4e3, "4000"),
    ],
)
def test_milliseconds_are_shown_with_three_digits(ms, shown):
    assert three_digits(ms) == shown


def test_tables_of_a_long_context_fit_eighty_columns():
    widths, pasts = range(1, 17), (128, 512, 2048, 4080)
    points = tuple(
        Point(width=n, past=p, count=9, ms=n * 12.345, low_ms=n * 12.0, high_ms=n * 15.0)
        for n in widths
        for p in pasts
    )
    target = Curve(role="target", width_step=2, points=points)
    draft = Curve(role="draft", width_step=1, points=points)
    console = Console(width=80, file=io.StringIO())
    measured = {"plan": "full", "passes": 9, "seconds": 1.0, "converged": True}
    tables = probe_tables(CostCurves(target=target, draft=draft, **measured))
    for table, heads in zip(tables, (1, 1, 2), strict=True):
        lines = console.render_lines(table, pad=False)
        assert len(lines) == 1 + heads + table.row_count
        assert table.row_count >= 15
        assert all(sum(part.cell_length for part in line) <= 80 for line in lines)


def test_a_row_of_the_decision_holds_what_was_found():
    found = samples.findings(samples.curves())
    lines = lines_of(decision_table(found))
    assert len(lines) == 3 + len(found.findings)
    assert all(len(line) <= 80 for line in lines)
    for each, line in zip(found.findings, lines[3:], strict=True):
        assert line.startswith(f"{each.workload} ")
        assert line.endswith(each.verdict)
        cells = line.removeprefix(each.workload).removesuffix(each.verdict).split()
        best = each.best or max(each.expected, key=lambda some: some.estimate.gain)
        assert cells[:3] == [each.proposer, str(each.best_k), f"{best.estimate.gain:.2f}x"]
        assert cells[-2:] == [f"{best.acceptance_rate:.0%}", f"{best.acceptance_length:.2f}"]
        live = each.measured
        shown = [f"{live.gain:.2f}x", f"{live.low:.2f}..{live.high:.2f}"] if live else ["–"]
        assert cells[3:-2] == shown


def test_long_and_hostile_names_are_folded_not_cut_and_never_markup():
    found = samples.troubled().findings
    assert found is not None
    lines = lines_of(decision_table(found))
    name = found.findings[0].workload
    first = [line[: lines[2].index("by")].strip() for line in lines[3:]]
    assert " ".join(first).startswith(f"{name} {name} ")
    assert all(Console().measure(line).maximum <= 80 for line in lines)
    odd = found.findings[0].model_copy(update={"workload": "[bold]loud[/bold]"})
    lines = lines_of(decision_table(found.model_copy(update={"findings": (odd,)})))
    assert any("[bold]loud[/bold]" in line for line in lines)


def test_an_estimate_of_too_few_prompts_has_no_interval_in_its_row():
    found = samples.findings(samples.curves())
    bare = found.findings[1].model_copy(update={"measured": Estimate(gain=1.5, prompts=2)})
    line = lines_of(decision_table(found.model_copy(update={"findings": (bare,)})))[-1]
    assert " 1.50x " in line
    assert ".." not in line


def test_verdict_lines_are_the_reason_each_proposer_and_the_doubts():
    good = verdict_lines(samples.findings(samples.curves()))
    best = "at best 3.37x (code editing, K=11)"
    assert good[:2] == [samples.REASON, f"ngram: pays for 4 of 5 workloads, open for 1, {best}"]
    assert good[2].startswith("draft: pays for 4 of 5 workloads, does not pay for 1, at best ")
    said = "energy: 1.21 J a token plainly, 0.846 J with speculation (RAPL package-0)"
    assert good[3:] == [said]
    troubled = samples.troubled().findings
    assert troubled is not None
    bad = verdict_lines(troubled)
    assert "energy" not in "\n".join(bad)
    assert bad[1].startswith("ngram: ruled out; does not pay for 5 of 5 workloads, at best 0.99x")
    assert "note: 1 of 24 speculative texts differed from the plain one" in "\n".join(bad)
    assert "note: Not steady: power mode 15W -> 7W" in bad
