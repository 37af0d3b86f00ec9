"""`specedge canary`, and `--canary` of run and chat."""

from __future__ import annotations

import json

import pytest

from canary_desk import TEXT, spoil_acceptance
from commands import alphabet, runner
from tiny import write_bundle

ON = ("--engine", "fake", "--raw", "--max-tokens", "22", "--canary", "1")
DRAFTS = ("--speculation", "on", "--draft-length", "4", "--proposers", "ngram")


@pytest.fixture
def specedge(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


@pytest.fixture
def bundle(tmp_path, private_cache):
    return write_bundle(tmp_path / "tiny", rule=alphabet())


def test_a_run_compares_says_so_and_leaves_a_record(specedge, bundle):
    code, out, err = specedge("run", bundle, TEXT, *ON, *DRAFTS)
    assert (code, out) == (0, "klmnopqrstuvwxyzabcdef\n")
    (line,) = [line for line in err.splitlines() if line.startswith("canary: ")]
    assert line.startswith("canary: 1 equal, ")
    code, out, err = specedge("canary", bundle)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("watching since ")
    assert "1 request, 1 of them timed with drafts" in out
    assert "1 equal, 0 mismatches" in out
    assert "next look at 12 timed" in out
    assert any("100%" in line and "ngram" in line for line in lines)


def test_a_chat_compares_too(specedge, bundle):
    options = [each for each in ON if each != "--raw"]
    code, _, err = specedge("chat", bundle, *options, stdin=b"abc\nabc\n")
    assert code == 0
    assert "canary: 2 equal" in err


def test_evidence_is_shown_with_its_place_tokens_margin_and_noise(specedge, bundle, monkeypatch):
    with monkeypatch.context() as patch:
        spoil_acceptance(patch, 77)  # "j"
        specedge("run", bundle, TEXT, *ON, *DRAFTS)
    code, out, _ = specedge("canary", bundle)
    assert code == 0
    first, *rest = out.splitlines()
    assert first.startswith("off: mismatch since ")
    assert "is 'j' with speculation and " in first
    table = dict(line.split(maxsplit=1) for line in rest if line.strip())
    assert "'j' (id 77); 22 tokens in all" in table["speculative"]
    assert table["where"].startswith("output token ")
    assert float(table["margin"]) > 0
    assert table["width"].split() == ["noise", "0"]
    code, out, err = specedge("run", bundle, TEXT, *ON)
    assert (code, out) == (0, "klmnopqrstuvwxyzabcdef\n")
    assert "speculation off: the canary turned speculation off: output token " in err


def test_options_that_would_turn_a_terminals_text_around_are_written_out(
    specedge, bundle, monkeypatch
):
    with monkeypatch.context() as patch:
        spoil_acceptance(patch, 77)
        specedge("run", bundle, TEXT, *ON, *DRAFTS, "--stop", "\u202e[red]\x1b[1m", "--stop", "é")
    code, out, _ = specedge("canary", bundle)
    assert code == 0
    assert '"stop": ["\\u202e[red]\\u001b[1m", "é"]' in out
    assert out.replace("\n", "").isprintable()


def test_json_has_all_of_it(specedge, bundle):
    specedge("run", bundle, TEXT, *ON, *DRAFTS)
    specedge("run", bundle, TEXT, *ON, *DRAFTS, "--context", "128")
    code, out, _ = specedge("canary", bundle, "--json")
    assert code == 0
    said = json.loads(out)
    assert (said["bundle"], said["damaged"]) == ("tiny", [])
    newer, older = said["records"]
    assert newer["differs"] == []
    assert older["differs"] == ["target context 128 -> 256"]
    assert newer["verdict"]["state"] == "watching"
    assert newer["totals"]["equal"] == len(newer["last"]) == 1
    assert older["path"].startswith(str(bundle / "canaries"))
    assert "differs by  target context 128 -> 256" in " ".join(
        specedge("canary", bundle)[1].split(" ")
    )


def test_as_many_of_the_last_comparisons_are_listed_as_one_wants(specedge, bundle):
    for tokens in ("12", "13", "14"):
        specedge("run", bundle, TEXT, *ON, *DRAFTS, "--max-tokens", tokens)

    def listed(*options: str) -> list[str]:
        lines = specedge("canary", bundle, *options)[1].splitlines()
        return [line.split("equal")[1].split()[0] for line in lines if "100%" in line]

    assert listed() == ["12", "13", "14"]
    assert listed("--last", "2") == ["13", "14"]
    assert listed("--last", "0") == []
    for other in ("--json", "--clear"):
        code, out, err = specedge("canary", bundle, "--last", "2", other)
        assert (code, out) == (2, "")
        assert "--last is for the tables" in err


def test_clearing_forgets(specedge, bundle):
    specedge("run", bundle, TEXT, *ON, *DRAFTS)
    assert specedge("canary", bundle, "--clear")[:2] == (0, "cleared: 1\n")
    code, out, err = specedge("canary", bundle)
    assert (code, out) == (1, "")
    assert err == (
        f"error: {bundle}: there is no record of a canary yet; run with --canary 0.05, or load "
        "with canary=0.05\n"
    )
    assert specedge("canary", bundle, "--clear")[0] == 1


def test_a_damaged_record_is_one_line_and_others_are_shown(specedge, bundle):
    specedge("run", bundle, TEXT, *ON, *DRAFTS)
    (bundle / "canaries" / "0123456789abcdef.json").write_text("{")
    code, out, err = specedge("canary", bundle)
    assert code == 0
    assert "watching since" in out
    (line,) = err.splitlines()
    assert "not valid JSON" in line
    for path in (bundle / "canaries").iterdir():
        path.write_text("{")
    code, _, err = specedge("canary", bundle)
    assert code == 1
    assert err.splitlines()[-1] == ("error: no record can be used; --clear removes what is there")


@pytest.mark.parametrize("share", ["1.5", "-1", "nan"])
def test_a_share_out_of_range_is_one_error(specedge, bundle, share):
    code, out, err = specedge("run", bundle, TEXT, "--engine", "fake", "--canary", share)
    assert (code, out) == (1, "")
    assert err.startswith("error: canary: expected 0..1")
    assert len(err.splitlines()) == 1


def test_no_bundle_is_one_error(specedge, tmp_path):
    code, _, err = specedge("canary", tmp_path)
    assert code == 1
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
