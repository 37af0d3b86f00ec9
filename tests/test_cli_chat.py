from __future__ import annotations

from pathlib import Path

import pytest

from commands import alphabet, runner
from tiny import write_bundle


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Answers a to z, then ends."""
    return write_bundle(tmp_path / "abc", rule=alphabet(end=True))


def chat(bundle: Path, *args: str) -> tuple[str, ...]:
    return ("chat", str(bundle), "--engine", "fake", *args)


def test_every_line_of_a_pipe_is_answered_in_turn(said, bundle):
    code, out, err = said(*chat(bundle, "--max-tokens", "3"), stdin=b"one\n\ntwo\n")
    assert (code, out) == (0, "abc\nabc\n")
    assert err.count("tokens, length") == 2


def test_a_chat_samples_as_a_run_does(said, bundle):
    args = ("--temperature", "2", "--max-tokens", "20", "--seed", "7")
    code, out, err = said(*chat(bundle, *args), stdin=b"one\n")
    assert code == 0
    assert out == said(*chat(bundle, *args, "--speculation", "off"), stdin=b"one\n")[1]
    assert not out.startswith("abcdef")
    assert "; coupled, seed 7; " in err


def test_a_bad_option_ends_a_chat_before_the_first_answer(said, bundle):
    code, out, err = said(*chat(bundle, "--top-p", "2"), stdin=b"one\n")
    assert (code, out) == (1, "")
    assert err.startswith("error: top_p: expected")


def test_no_stats_leaves_stderr_empty(said, bundle):
    assert said(*chat(bundle, "--no-stats"), stdin=b"one\n")[2] == ""


def test_a_turn_after_another_runs_only_what_is_new(said, bundle, monkeypatch):
    from specedge.engines.fake import FakeEngine

    widths = []
    real = FakeEngine.forward

    def forward(self, slot, tokens, n_cached, rows):
        widths.append((n_cached, len(tokens)))
        return real(self, slot, tokens, n_cached, rows)

    monkeypatch.setattr(FakeEngine, "forward", forward)
    options = ("--max-tokens", "4", "--speculation", "off")
    said(*chat(bundle, *options), stdin=b"a long first message\nsecond\n")
    prefills = [pair for pair in widths if pair[1] > 1]
    assert prefills[0][0] == 0
    assert prefills[-1][0] > 20, "the second turn started over"


def test_reset_forgets_and_help_explains(said, bundle):
    lines = b"one\n/reset\n/help\n/nonsense\n/exit\nnever reached\n"
    code, out, err = said(*chat(bundle, "--max-tokens", "2", "--no-stats"), stdin=lines)
    assert (code, out) == (0, "ab\n")
    assert "the conversation is forgotten" in err
    assert "/nonsense: no such command" in err


def test_invalid_utf8_in_a_pipe_names_line_and_byte(said, bundle):
    code, out, err = said(*chat(bundle, "--no-stats", "--max-tokens", "1"), stdin=b"one\nt\xffo\n")
    assert (code, out) == (1, "a\n")
    assert err.startswith("error: stdin, line 2: invalid UTF-8 at byte 1 (0xff)")


def test_a_message_that_does_not_fit_ends_a_pipe_with_an_error(said, bundle):
    code, _, err = said(*chat(bundle, "--context", "16"), stdin=b"far too long for this\n")
    assert code == 1
    assert err.startswith("error: ")


def test_at_a_terminal_a_message_that_does_not_fit_is_only_a_line(said, bundle, monkeypatch):
    lines = iter(["far too long for this context of sixteen rows", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    code, _, err = said(*chat(bundle, "--context", "16"))
    assert code == 0
    assert "/reset forgets the conversation" in err


def test_ctrl_c_stops_the_answer_and_ctrl_c_at_the_prompt_does_not_leave(said, bundle, monkeypatch):
    from specedge.engines.fake import FakeEngine

    keys = iter([KeyboardInterrupt, "one", "two", EOFError])
    real, calls = FakeEngine.forward, []

    def forward(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *args)

    def typed(prompt):
        key = next(keys)
        if isinstance(key, str):
            return key
        raise key

    monkeypatch.setattr(FakeEngine, "forward", forward)
    monkeypatch.setattr("builtins.input", typed)
    options = ("--max-tokens", "5", "--speculation", "off")
    code, out, err = said(*chat(bundle, *options))
    assert (code, out) == (0, "ab\nabcde\n")
    assert "2 tokens, cancelled" in err


def test_a_bundle_without_template_cannot_chat(said, tmp_path):
    bundle = write_bundle(tmp_path / "plain", template=None)
    code, _, err = said(*chat(bundle), stdin=b"hi\n")
    assert code == 1
    assert "has no chat template" in err
