"""Round reports: they add up, and a person can read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import specedge
from commands import alphabet, runner
from specedge.engines import registry
from specedge.engines.fake import agreeing, hashed
from specedge.errors import OptionError
from specedge.proposers.base import PADDING
from specedge.result import Result, RoundReport
from tests.timed import CHEAP, DRAFT, TimedEngine, install, steps
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")
PROMPT = "hello world"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "tiny", draft=True, context=512, rule=alphabet())


@pytest.fixture
def clock(monkeypatch):
    """Every engine that is opened works in known time."""
    made = install(monkeypatch)
    rule = hashed(200, last=3)

    def create(name, path, spec, *, context=None, **given):
        if spec.role == "draft":
            drafting = agreeing(rule, 0.6, 200)
            return TimedEngine(made, steps(DRAFT), spec, drafting, context=context)
        return TimedEngine(made, steps(CHEAP), spec, rule, context=context)

    monkeypatch.setattr(registry, "create", create)
    return made


def generate(bundle: Path, max_tokens: int = 250, loading: dict | None = None, **given) -> Result:
    with specedge.load(bundle, engine="fake", **(loading or {})) as model:
        given = {"ignore_eos": True, "explain": True} | given
        return model.generate(PROMPT, max_tokens=max_tokens, **given)


def check(result: Result, reports: list[RoundReport] | None = None) -> list[RoundReport]:
    """The reports of a whole request, held against its result."""
    reports = result.rounds if reports is None else reports
    assert reports is not None
    metrics = result.metrics
    assert [report.number for report in reports] == list(range(1, len(reports) + 1))
    assert len(reports) == metrics.rounds
    assert sum(report.committed for report in reports) + 1 == metrics.generated
    past = result.prompt_tokens
    for report in reports:
        assert report.past == past
        past += report.committed
        assert 0 <= report.accepted <= report.drafted
        assert report.committed in (report.accepted, report.accepted + 1)
        assert (report.proposer is None) == (report.drafted == 0)
        assert 0 <= report.draft_ms <= report.ms
        assert report.reason
        assert "\n" not in report.reason
    guesses = [report for report in reports if report.proposer != PADDING]
    assert sum(report.drafted for report in guesses) == metrics.proposed
    assert sum(report.accepted for report in guesses) == metrics.accepted
    spent = metrics.propose_ms + metrics.verify_ms + metrics.accept_ms + metrics.other_ms
    assert sum(report.ms for report in reports) <= spent * (1 + 1e-9)
    return reports


def test_reports_of_a_run_that_measures_and_then_drafts_add_up(clock, bundle):
    for _ in range(2):
        result = generate(bundle)
        reports = check(result)
        assert len(result.tokens) == 250
        assert {report.proposer for report in reports} >= {None, "ngram"}
    assert all(report.expected_tokens_per_second for report in reports)


def test_in_known_time_the_reports_are_all_of_it(clock, bundle):
    result = generate(bundle)
    assert result.metrics.tpot_ms is not None
    spent = sum(report.ms for report in result.rounds or ())
    assert spent == pytest.approx(result.metrics.tpot_ms * 249)
    with_draft = sum(report.draft_ms for report in result.rounds or ())
    assert with_draft == pytest.approx(result.metrics.propose_ms)


@pytest.mark.parametrize(
    ("loading", "reasons"),
    [
        ({"speculation": "off"}, {"plain step: turned off by request"}),
        (
            {"speculation": "on", "proposers": ["draft"]},
            {"draft: the draft length is fixed", "plain step: nobody drafted"},
        ),
        (
            {"speculation": "on"},
            {
                "draft: the draft length is fixed",
                "ngram: the draft length is fixed",
                "plain step: nobody drafted",
            },
        ),
    ],
)
def test_where_nobody_chooses_the_setting_is_the_reason(clock, bundle, loading, reasons):
    result = generate(bundle, loading=loading)
    found = {report.reason for report in check(result)}
    assert found <= reasons
    assert {report.expected_tokens_per_second for report in result.rounds or ()} == {None}


def test_every_kind_of_reason_is_said_in_words(clock, bundle):
    reasons = [report.reason for _ in range(2) for report in check(generate(bundle, 400))]
    assert reasons.count("measuring how long draft takes to read the text so far") == 1
    starts = ("measuring what a call of N = ", "draft: ", "ngram: ", "plain step: ")
    known = (
        *starts,
        "measuring how long draft ",
        "draft, on trial: ",
        "ngram, on trial: ",
        "speculation off: ",
    )
    assert all(reason.startswith(known) for reason in reasons)
    for start in (starts[0], starts[1], starts[3]):
        assert any(reason.startswith(start) for reason in reasons)


def test_without_explain_there_is_none(clock, bundle):
    result = generate(bundle, explain=False)
    assert result.rounds is None
    assert "rounds" not in result.to_dict()
    with specedge.load(bundle, engine="fake") as model:
        assert {event.rounds for event in model.stream(PROMPT, max_tokens=9)} == {None}


def test_explaining_changes_neither_text_nor_counts(clock, bundle):
    loud, quiet = generate(bundle), generate(bundle, explain=False)
    assert loud.tokens == quiet.tokens
    assert generate(bundle, 1).rounds == []


@pytest.mark.parametrize("value", [1, "yes", 0.0])
def test_explain_is_yes_or_no(bundle, value):
    with pytest.raises(OptionError, match="explain: expected True or False"):
        generate(bundle, explain=value)


def test_events_carry_each_report_once_and_in_order(clock, bundle):
    with specedge.load(bundle, engine="fake") as model:
        stream = model.stream(PROMPT, max_tokens=200, ignore_eos=True, explain=True)
        reports = [report for event in stream for report in event.rounds or ()]
        assert stream.result is not None
        assert reports == stream.result.rounds
        check(stream.result, reports)


def test_each_sample_has_its_own_reports(clock, bundle):
    result = generate(bundle, 60, n=3, temperature=1.0, seed=5)
    assert result.samples is not None
    for sample in result.samples:
        check(sample)
    assert len(json.loads(result.to_json())["samples"][2]["rounds"]) == len(
        result.samples[2].rounds or ()
    )


def test_a_stream_that_is_given_up_keeps_the_reports_so_far(clock, bundle):
    with specedge.load(bundle, engine="fake") as model:
        stream = model.stream(PROMPT, max_tokens=200, ignore_eos=True, explain=True)
        for _ in range(30):
            next(stream)
        stream.close()
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"
    assert len(check(stream.result)) >= 29


def test_a_stop_string_leaves_the_last_round_whole(clock, bundle):
    whole = generate(bundle, 200)
    stop = whole.text[150:153]
    result = generate(bundle, 200, stop=[stop])
    assert result.finish_reason == "stop_string"
    check(result)


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


def fake(bundle: Path, *args: str) -> tuple[str, ...]:
    return ("run", str(bundle), PROMPT, "--engine", "fake", *args)


def test_explain_prints_a_line_a_round_on_stderr_and_leaves_the_text_alone(said, bundle):
    code, plain, _ = said(*fake(bundle, "--max-tokens", "150", "--no-stats"))
    assert code == 0
    code, out, err = said(*fake(bundle, "--max-tokens", "150", "--explain", "--no-stats"))
    assert (code, out) == (0, plain)
    header, *lines = err.splitlines()
    assert header.split() == ["round", "past", "drafted", "kept", "ms", "draft", "ms", "why"]
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == list(range(1, len(lines) + 1))
    assert len(lines) > 20
    assert all(line.rstrip() == line for line in lines)


def test_the_same_reason_again_is_a_ditto_mark(said, bundle):
    err = said(*fake(bundle, "--max-tokens", "20", "--explain", "--no-stats"))[2]
    lines = err.splitlines()[1:]
    assert lines[0].endswith("  measuring what a call of N = 1 costs")
    assert all(line.endswith('  "') for line in lines[1:-1])
    assert lines[-1].endswith("  plain step: no room for a draft")


def test_explain_comes_before_the_statistics(said, bundle):
    err = said(*fake(bundle, "--max-tokens", "20", "--explain"))[2]
    lines = err.splitlines()
    assert lines[0].startswith(" round")
    assert lines[-1].startswith("[20 tokens, length, ")


def test_json_carries_the_reports_in_events_and_result(said, bundle):
    code, out, err = said(*fake(bundle, "--max-tokens", "150", "--explain", "--json"))
    assert (code, err) == (0, "")
    *events, result = [json.loads(line) for line in out.splitlines()]
    reports = [report for event in events for report in event["rounds"]]
    assert reports == result["rounds"]
    assert sum(report["committed"] for report in reports) + 1 == len(result["tokens"]) == 150
    assert set(reports[0]) == set(RoundReport.__slots__)
    *events, result = [
        json.loads(line)
        for line in said(*fake(bundle, "--max-tokens", "20", "--json"))[1].splitlines()
    ]
    assert not any("rounds" in each for each in [*events, result])


def test_samples_are_told_apart(said, bundle):
    args = ("--n", "2", "--temperature", "1", "--seed", "1", "--max-tokens", "5", "--no-stats")
    err = said(*fake(bundle, *args, "--explain"))[2]
    assert [line for line in err.splitlines() if line.startswith("[")] == [
        "[sample 1]",
        "[sample 2]",
    ]
