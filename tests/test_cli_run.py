from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import specedge
from commands import alphabet, runner
from specedge.cli._output import describe
from tiny import byte_tokenizer, edit_manifest, write_bundle

PROMPT = "hello world"
LETTER_IDS = [byte_tokenizer().token_to_id(letter) for letter in "abcdefgh"]


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A model that repeats the alphabet for ever."""
    return write_bundle(tmp_path / "abc", rule=alphabet())


def fake(bundle: Path, *args: str) -> tuple[str, ...]:
    return ("run", str(bundle), *args, "--engine", "fake")


def test_text_goes_to_stdout_and_statistics_to_stderr(said, bundle):
    code, out, err = said(*fake(bundle, PROMPT, "--max-tokens", "6"))
    assert (code, out) == (0, "abcdef\n")
    assert err.startswith("[6 tokens, length, ")
    assert "; speculation off: measuring in the stream what calls cost here" in err
    assert err.count("\n") == 1


ON = ("--speculation", "on")


@pytest.mark.parametrize("speculation", ["auto", "on", "off"])
def test_the_text_does_not_depend_on_speculation(said, bundle, speculation):
    args = ("--max-tokens", "60", "--speculation", speculation, "--draft-length", "7")
    assert said(*fake(bundle, PROMPT, *args))[1] == ("abcdefghijklmnopqrstuvwxyz" * 3)[:60] + "\n"


def test_a_repeating_text_shows_accepted_drafts(said, bundle):
    err = said(*fake(bundle, PROMPT, "--max-tokens", "200", *ON))[2]
    assert "speculation on (ngram): 100% of " in err
    assert "tokens a round" in err


def test_speculation_that_is_off_says_why(said, bundle):
    err = said(*fake(bundle, PROMPT, "--max-tokens", "4", "--speculation", "off"))[2]
    assert "speculation off: turned off by request" in err


def test_what_is_off_is_said_to_be_so_once(bundle):
    with specedge.load(bundle, engine="fake") as model:
        result = model.generate(PROMPT, max_tokens=4)
    state = replace(result.speculation, on=False, reason="speculation off: it did not pay")
    assert describe(replace(result, speculation=state)).endswith(
        "; speculation off: it did not pay"
    )


def test_no_stats_leaves_stderr_empty(said, bundle):
    assert said(*fake(bundle, PROMPT, "--max-tokens", "4", "--no-stats"))[2] == ""


def test_json_gives_one_object_an_event_and_ends_with_the_result(said, bundle):
    code, out, err = said(*fake(bundle, PROMPT, "--max-tokens", "40", "--json", *ON))
    *events, result = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert "".join(event["text"] for event in events) == result["text"]
    assert [token for event in events for token in event["tokens"]] == result["tokens"]
    assert result["finish_reason"] == "length"
    assert result["speculation"]["proposer"] == "ngram"
    assert result["metrics"]["rounds"] < 40
    assert {"prompt_tokens", "seed", "tokens"} <= result.keys()


def test_logprobs_come_with_every_event_of_json(said, bundle):
    out = said(*fake(bundle, PROMPT, "--max-tokens", "3", "--json", "--logprobs", "2"))[1]
    *events, result = [json.loads(line) for line in out.splitlines()]
    for event in events:
        assert [entry["token"] for entry in event["logprobs"]] == event["tokens"]
        assert all(len(entry["top"]) == 2 for entry in event["logprobs"])
    assert len(result["logprobs"]) == 3


def test_logprobs_without_json_is_a_usage_error(said, bundle):
    code, out, err = said(*fake(bundle, PROMPT, "--logprobs", "2"))
    assert (code, out) == (2, "")
    assert "--logprobs needs --json" in err


SAMPLED = ("--temperature", "2", "--max-tokens", "30")


@pytest.mark.parametrize("length", ["1", "7"])
def test_a_seed_gives_the_same_text_whatever_is_drafted(said, bundle, length):
    args = fake(bundle, PROMPT, *SAMPLED, "--seed", "7")
    plain = said(*args, "--speculation", "off")
    drafted = said(*args, "--draft-length", length)
    assert plain[1] == drafted[1]
    assert said(*args[:-1], "8")[1] != plain[1]
    assert "; coupled, seed 7; speculation off" in plain[2]


def test_without_a_seed_the_one_that_was_drawn_is_said(said, bundle):
    err = said(*fake(bundle, PROMPT, *SAMPLED))[2]
    assert re.search(r"; rejection, seed \d+ \(repeats for the same draft lengths\); spec", err)


def test_greedy_has_no_seed_to_say(said, bundle):
    assert "seed" not in said(*fake(bundle, PROMPT, "--max-tokens", "3", "--seed", "7"))[2]


def test_every_option_of_sampling_reaches_the_request(said, bundle, monkeypatch):
    from specedge.model import Model

    asked = {}

    def stream(self, prompt, **options):
        asked.update(options)
        return real(self, prompt, max_tokens=1)

    real = Model.stream
    monkeypatch.setattr(Model, "stream", stream)
    args = {
        "--temperature": "0.0",
        "--top-k": "0",
        "--top-p": "0.9",
        "--min-p": "0",
        "--repetition-penalty": "1.1",
        "--frequency-penalty": "-1",
        "--presence-penalty": "0",
        "--min-tokens": "0",
        "--seed": "0",
        "--acceptance": "block",
        "--n": "1",
    }
    more = ("--logit-bias", "5=-1.5", "--logit-bias", "6=2", "--ban", "7", "--ban", "8")
    assert (
        said(*fake(bundle, PROMPT, *(part for pair in args.items() for part in pair), *more))[0]
        == 0
    )
    assert asked == {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 0.9,
        "min_p": 0.0,
        "repetition_penalty": 1.1,
        "frequency_penalty": -1.0,
        "presence_penalty": 0.0,
        "min_tokens": 0,
        "seed": 0,
        "acceptance": "block",
        "n": 1,
        "logit_bias": {"5": -1.5, "6": 2.0},
        "banned_tokens": (7, 8),
    }


LETTERS = [arg for id_ in LETTER_IDS for arg in ("--logit-bias", f"{id_}=20")]


def test_samples_stand_apart_and_each_has_its_line_of_statistics(said, bundle):
    args = (*SAMPLED, *LETTERS, "--n", "3", "--seed", "7")
    code, out, err = said(*fake(bundle, PROMPT, *args))
    texts = out.removesuffix("\n").split("\n---\n")
    assert code == 0
    assert [len(text) for text in texts] == [30, 30, 30]
    assert len(set(texts)) == 3
    heads = [line.partition(":")[0] for line in err.splitlines()]
    assert heads == ["[sample 2]", "[sample 3]", "[sample 1", "[sample 2", "[sample 3"]
    assert said(*fake(bundle, PROMPT, *args, "--no-stats"))[1:] == (out, "")


def test_json_says_whose_text_an_event_is(said, bundle):
    args = (*SAMPLED, "--n", "2", "--seed", "7", "--json")
    *events, result = [
        json.loads(line) for line in said(*fake(bundle, PROMPT, *args))[1].splitlines()
    ]
    assert [event["sample"] for event in events] == sorted(event["sample"] for event in events)
    for number, sample in enumerate(result["samples"]):
        own = [event for event in events if event["sample"] == number]
        assert "".join(event["text"] for event in own) == sample["text"]
    assert result["text"] == result["samples"][0]["text"]
    assert (result["acceptance"], result["reproducible"], result["seed"]) == ("coupled", True, 7)


def test_stop_strings_and_echo_are_honoured(said, bundle):
    args = ("--raw", "--echo", "--stop", "ef", "--stop", "zz", "--max-tokens", "20")
    assert said(*fake(bundle, "abc", *args))[1] == "abcd\n"


def test_ignore_eos_goes_on_past_the_end(said, tmp_path):
    bundle = write_bundle(tmp_path / "ends", rule=alphabet(end=True))
    short = json.loads(said(*fake(bundle, PROMPT, "--json"))[1].splitlines()[-1])
    assert short["finish_reason"] == "stop"
    args = ("--json", "--ignore-eos", "--max-tokens", "40")
    long = json.loads(said(*fake(bundle, PROMPT, *args))[1].splitlines()[-1])
    assert (long["finish_reason"], len(long["tokens"])) == ("length", 40)


def test_the_prompt_goes_through_the_chat_template_unless_raw(said, bundle):
    args = ("--echo", "--max-tokens", "2")
    assert said(*fake(bundle, PROMPT, *args))[1].startswith(f"user: {PROMPT}\n")
    system = said(*fake(bundle, PROMPT, *args, "--system", "Be brief."))[1]
    assert system.startswith(f"system: Be brief.\nuser: {PROMPT}\n")
    assert said(*fake(bundle, PROMPT, *args, "--raw"))[1].startswith(PROMPT + "ef")


def test_a_bundle_without_template_completes_the_prompt_and_refuses_a_system(said, tmp_path):
    bundle = write_bundle(tmp_path / "plain", template=None, rule=alphabet())
    args = ("--echo", "--max-tokens", "2")
    assert said(*fake(bundle, PROMPT, *args))[1] == PROMPT + "ef\n"
    code, _, err = said(*fake(bundle, PROMPT, *args, "--system", "Be brief."))
    assert code == 1
    assert "has no chat template" in err


def test_system_and_raw_exclude_each_other(said, bundle):
    assert said(*fake(bundle, PROMPT, "--raw", "--system", "x"))[0] == 2


@pytest.mark.parametrize("args", [["-"], []])
def test_stdin_is_the_prompt_without_its_last_newline(said, bundle, args):
    options = ("--echo", "--raw", "--max-tokens", "1")
    out = said(*fake(bundle, *args, *options), stdin=b"h\xc3\xa9llo\n\n")[1]
    assert out == "héllo\n" + "a\n"


def test_files_follow_the_prompt_after_a_blank_line(said, bundle, tmp_path):
    (tmp_path / "one.txt").write_bytes("\ufeffone\n".encode())
    (tmp_path / "two.txt").write_text("two")
    files = ("--file", str(tmp_path / "one.txt"), "--file", str(tmp_path / "two.txt"))
    out = said(*fake(bundle, "Read:", *files, "--echo", "--raw", "--max-tokens", "1"))[1]
    assert out == "Read:\n\none\n\n\ntwop\n"


def test_no_prompt_on_a_terminal_is_a_usage_error(said, bundle):
    code, _, err = said(*fake(bundle))
    assert code == 2
    assert "give a PROMPT" in err


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (["-"], b"good \xff bad", "stdin: invalid UTF-8 at byte 5 (0xff)"),
        (["-"], b"cut \xe2\x82", "stdin: invalid UTF-8 at byte 4 (0xe2)"),
        (["-"], b"", "empty"),
        ([""], None, "empty"),
        (["--raw", ""], None, "empty"),
        (["lone \udcff surrogate"], None, "surrogate"),
        (["--file", "/nonexistent/a.txt"], None, "/nonexistent/a.txt: cannot be read"),
        ([PROMPT, "--max-tokens", "0"], None, "max_tokens"),
        ([PROMPT, "--stop", ""], None, "stop"),
        ([PROMPT, "--temperature", "-1"], None, "temperature: expected 0 (greedy) or"),
        ([PROMPT, "--temperature", "nan"], None, "temperature: expected 0 (greedy) or"),
        ([PROMPT, "--top-p", "0"], None, "top_p: expected a number above 0"),
        ([PROMPT, "--top-k", "-2"], None, "top_k: expected"),
        ([PROMPT, "--min-p", "1.5"], None, "min_p: expected a number of 0..1"),
        ([PROMPT, "--seed", str(2**64)], None, "seed: expected an integer of 0..2^64-1"),
        ([PROMPT, "--logit-bias", "9999=1"], None, "logit_bias: id: expected"),
        ([PROMPT, "--logit-bias", "-1=1"], None, "logit_bias: id: expected"),
        ([PROMPT, "--logit-bias", "5=nan"], None, "logit_bias[5]: expected"),
        ([PROMPT, "--ban", "-1"], None, "banned_tokens[0]: expected"),
        ([PROMPT, "--min-tokens", "9", "--max-tokens", "8"], None, "min_tokens: 9 is above"),
        ([PROMPT, "--n", "2"], None, "n: all 2 samples would be equal"),
        (
            [PROMPT, "--acceptance", "greedy", "--temperature", "1"],
            None,
            "acceptance: greedy would not keep",
        ),
        ([PROMPT, "--draft-length", "-1"], None, "draft_length: expected 0 or more, found -1"),
        ([PROMPT, "--draft-length", "16"], None, "draft_length: 16 drafted tokens"),
        ([PROMPT, "--draft-length", "400"], None, "draft_length: 400 drafted tokens do not fit"),
        ([PROMPT, "--proposers", "ngam"], None, "did you mean ngram?"),
        ([PROMPT, "--context", "100000"], None, "context: expected 1..256"),
        ([PROMPT, "--threads", "0"], None, "threads"),
        (["x" * 400, "--raw"], None, "256"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(said, bundle, args, stdin, message):
    code, out, err = said(*fake(bundle, *args), stdin=stdin)
    assert (code, out) == (1, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--logit-bias", "5"], "expected ID=AMOUNT"),
        (["--logit-bias", "5=much"], "expected ID=AMOUNT"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "id 5 is named twice"),
        (["--acceptance", "blok"], "'blok' is not one of"),
        (["--seed", "x"], "is not a valid integer"),
        (["--top-k", "9" * 5000], "is not a valid integer"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(said, bundle, args, message):
    code, out, err = said(*fake(bundle, PROMPT, *args))
    assert (code, out) == (2, "")
    assert message in err


def test_an_unknown_engine_is_refused(said, bundle):
    code, _, err = said("run", str(bundle), PROMPT, "--engine", "gpu")
    assert code == 1
    assert err.startswith("error: engine: no engine 'gpu'")


@pytest.mark.parametrize("command", ["run", "chat", "inspect"])
def test_a_missing_bundle_is_one_line(said, command):
    args = [PROMPT] if command == "run" else []
    code, out, err = said(command, "/nonexistent/bundle", *args)
    assert (code, out) == (1, "")
    assert err.startswith("error: /nonexistent/bundle: no such folder")


@pytest.mark.parametrize(
    ("section", "wrong", "message"),
    [
        ("generation", {"temperature": -1}, "generation.temperature: Input should be"),
        ("generation", {"temperature": float("nan")}, "generation.temperature: Input should be"),
        ("generation", {"temperature": 1e-9}, "generation.temperature: Value error, expected 0"),
        ("generation", {"top_p": 0}, "generation.top_p: Input should be"),
        ("generation", {"top_k": 10**400}, "generation.top_k: "),
        ("generation", {"min_p": [1]}, "generation.min_p: Input should be"),
        ("generation", {"repetition_penalty": 0}, "generation.repetition_penalty: Input"),
        ("generation", {"min_tokens": -1}, "generation.min_tokens: Input should be"),
        ("generation", {"mirostat": 2}, "generation.mirostat: Extra inputs"),
        ("speculation", {"acceptance": "greedy"}, "speculation.acceptance: Input should be"),
    ],
)
def test_defaults_out_of_range_in_a_manifest_are_one_line(said, bundle, section, wrong, message):
    edit_manifest(bundle, **{section: wrong})
    code, out, err = said(*fake(bundle, PROMPT))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert message in err


def test_a_bundle_from_before_sampling_is_greedy(said, bundle):
    edit_manifest(bundle, generation={"temperature": 0.0, "max_tokens": 6}, speculation={})
    assert said(*fake(bundle, PROMPT))[:2] == (0, "abcdef\n")


def test_the_bundles_defaults_are_used_shown_and_overridden(said, bundle):
    generation = {"temperature": 2.0, "max_tokens": 30, "top_p": 0.5}
    edit_manifest(bundle, generation=generation, speculation={"acceptance": "block"})
    code, text, err = said(*fake(bundle, PROMPT, "--seed", "7"))
    assert code == 0
    assert "; block, seed 7 (repeats for the same draft lengths); " in err
    assert not text.startswith("abcdef")
    assert said(*fake(bundle, PROMPT, "--temperature", "0"))[1][:6] == "abcdef"
    shown = said("inspect", str(bundle), "--no-verify")[1]
    for row in (r"acceptance\W+block", r"temperature\W+2", r"top p\W+0\.5"):
        assert re.search(row, shown)
    assert "min p" not in shown


def test_an_altered_file_is_named(said, bundle):
    (bundle / "target" / "weights.bin").write_bytes(b"\0\1\2\4")
    code, _, err = said(*fake(bundle, PROMPT))
    assert code == 1
    assert "weights.bin: altered since the export" in err


SLOW = """
import sys, time
from specedge.engines import fake
real = fake.FakeEngine.forward
def forward(self, *args):
    time.sleep(0.05)
    return real(self, *args)
fake.FakeEngine.forward = forward
from specedge.cli import main
main(sys.argv[1:])
"""


def start_slow(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, *args],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_was_said_and_exits_130(bundle, as_json):
    args = ["--speculation", "off", "--max-tokens", "200", *(["--json"] if as_json else [])]
    child = start_slow(*fake(bundle, PROMPT, *args))
    assert child.stdout is not None
    first = child.stdout.read(1)  # text leaves before the stream has ended
    child.send_signal(signal.SIGINT)
    rest, err = child.communicate(timeout=30)
    out = (first + rest).decode()
    assert child.returncode == 130
    assert "Traceback" not in err.decode()
    if as_json:
        *events, result = [json.loads(line) for line in out.splitlines()]
        assert result["finish_reason"] == "cancelled"
        assert "".join(event["text"] for event in events) == result["text"]
    else:
        assert "abcdefghijklmnopqrstuvwxyz".startswith(out.strip()[:26])
        assert out.endswith("\n")
        assert "cancelled" in err.decode()


def test_text_leaves_as_it_is_made(bundle):
    child = start_slow(*fake(bundle, PROMPT, "--speculation", "off", "--max-tokens", "60"))
    assert child.stdout is not None
    child.stdout.read(1)
    began = time.monotonic()
    child.communicate(timeout=30)
    assert time.monotonic() - began > 1.0, "the first character came with the last"


def test_a_reader_that_leaves_ends_the_run_quietly(bundle):
    child = start_slow(*fake(bundle, PROMPT, "--speculation", "off", "--max-tokens", "200"))
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(1)
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=30) == 141
    assert err == b""
