"""`specedge probe`: what it prints, and where."""

from __future__ import annotations

import json

import pytest

from commands import runner
from specedge.engines.fake import FakeEngine
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")

QUICK = ("--engine", "fake", "--budget", "0.05")


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


@pytest.fixture
def pair(tmp_path):
    return write_bundle(tmp_path / "pair", draft=True, max_verify=4)


def test_tables_go_to_stdout_and_the_rest_to_stderr(said, pair):
    code, out, err = said("probe", pair, *QUICK)
    assert code == 0
    assert "target: ms of N tokens after P rows, over N = 1" in out
    assert "draft: ms of N tokens after P rows, of a target step" in out
    assert "at best, all K drafted tokens accepted: speed over plain decoding" in out
    heads = next(line for line in out.splitlines() if "lookup" in line)
    assert heads.split()[:2] == ["lookup", "draft"]
    assert "measuring for at most 0.05 s" in err
    assert "measured: there is no record yet" in err
    assert str(pair / "probes") in err


def test_a_stored_record_is_shown_without_measuring(said, pair):
    first = said("probe", pair, *QUICK)
    code, out, err = said("probe", pair, *QUICK)
    assert (code, out) == (0, first[1])
    assert err.startswith("stored on 20")
    assert "--again measures again" in err


def test_again_and_a_changed_setting_say_why(said, pair):
    said("probe", pair, *QUICK, "--threads", "2")
    _, _, err = said("probe", pair, *QUICK, "--threads", "1")
    assert "measured again: threads 2 -> 1" in err
    _, _, err = said("probe", pair, *QUICK, "--threads", "1", "--again")
    assert "measured again: asked for" in err


def test_json_is_one_object_with_curves_fingerprint_and_gains(said, pair):
    code, out, _ = said("probe", pair, *QUICK, "--json", "--context", "64", "--no-exact")
    shown = json.loads(out)
    assert code == 0
    assert (shown["measured"], shown["decision"]) == (True, None)
    assert (shown["fingerprint"]["target_context"], shown["fingerprint"]["exact"]) == (64, False)
    points = shown["curves"]["target"]["points"]
    cost = {(point["width"], point["past"]): point["ms"] for point in points}
    assert {width for width, _ in cost} == {1, 2, 3, 4}
    steps = shown["curves"]["draft"]["points"]
    for gain in shown["best_gains"]:
        k, past = gain["draft_length"], gain["past"]
        plain, wide = cost[1, past], cost[k + 1, past]
        assert gain["lookup"] == pytest.approx((k + 1) * plain / wide)
        step = [each["ms"] for each in steps if (each["width"], each["past"]) == (1, past)]
        if step:
            assert gain["draft"] == pytest.approx((k + 1) * plain / (wide + k * step[0]))


def test_a_bundle_without_a_draft_has_lookups_only(said, tiny_bundle):
    code, out, _ = said("probe", tiny_bundle, *QUICK)
    assert code == 0
    assert "lookup" in out
    assert "draft:" not in out
    code, out, _ = said("probe", tiny_bundle, *QUICK, "--json")
    assert all(gain["draft"] is None for gain in json.loads(out)["best_gains"])


def test_a_bundle_that_verifies_one_token_has_no_gains_to_show(said, tmp_path):
    bundle = write_bundle(tmp_path / "one", max_verify=1, draft=True)
    code, out, _ = said("probe", bundle, *QUICK)
    assert code == 0
    assert "at best" not in out


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (("--budget", "soon"), 2, "is not a valid float"),
        (("--budget", "0"), 1, "error: budget: expected more than 0"),
        (("--budget", "nan"), 1, "error: budget: expected more than 0"),
        (("--threads", "0"), 1, "error: threads: expected 1.."),
        (("--context", "999"), 1, "error: context: expected 1..256"),
        (("--engine", "cpuu"), 1, "error: engine: no engine 'cpuu'"),
    ],
)
def test_a_wrong_option_is_one_line(said, tiny_bundle, args, code, line):
    got = said("probe", tiny_bundle, "--engine", "fake", *args)
    assert got[:2] == (code, "")
    assert line in got[2]
    assert not (tiny_bundle / "probes").exists()


def test_a_damaged_record_is_measured_again_and_replaced(said, pair):
    said("probe", pair, *QUICK)
    (path,) = (pair / "probes").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    code, _, err = said("probe", pair, *QUICK)
    assert code == 0
    assert f"measured again: {path}: not valid JSON, perhaps cut short" in err
    assert said("probe", pair, *QUICK)[2].startswith("stored on")


def test_interrupting_leaves_the_bundle_as_it_was(said, pair, monkeypatch):
    forward = FakeEngine.forward

    def interrupted(self, *args):
        if len(self.calls) == 12:
            raise KeyboardInterrupt
        return forward(self, *args)

    monkeypatch.setattr(FakeEngine, "forward", interrupted)
    code, out, err = said("probe", pair, *QUICK)
    assert (code, out) == (130, "")
    assert err.endswith("interrupted\n")
    assert not (pair / "probes").exists()
    monkeypatch.undo()
    assert said("run", pair, "hi", "--engine", "fake", "--max-tokens", "3")[0] == 0


def test_help_says_that_nothing_is_decided_yet(said):
    out = " ".join(said("probe", "--help")[1].split())
    assert "This version measures costs only: it does not yet decide" in out


def test_too_few_repetitions_are_called_that(said, pair, monkeypatch):
    code, out, err = said("probe", pair, "--engine", "fake", "--budget", "0.0001")
    assert code == 0
    assert "note: 1 of the 3 repetitions" in err
    assert "±?" in out
    assert "±0%" not in out
