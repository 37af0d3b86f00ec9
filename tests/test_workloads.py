"""The built-in prompts, and a user's file of prompts: good ones read, bad ones named."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import PromptError
from specedge.workloads import Workload, WorkloadPrompt, builtin, fits, read, reading

GOOD = '{"prompt": "Name a river."}\n'


@pytest.fixture
def write(tmp_path):
    """Write a prompt file of these lines or bytes, give its path."""

    def written(*lines: str | bytes, name: str = "my.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(
            b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        )
        return path

    return written


def refusal(path: Path | str) -> str:
    """The one line with which `path` is refused."""
    with pytest.raises(PromptError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path)), "the file comes first"
    assert len(message) < len(str(path)) + 250
    return message


# What comes with specedge


def test_every_class_has_enough_prompts_for_an_interval():
    names = [workload.name for workload in builtin()]
    assert names == ["chat", "code writing", "code editing", "summarising", "structured output"]
    for workload in builtin():
        assert len(workload.prompts) >= 24, workload.name
        assert workload.source == "built in"


def test_the_built_in_prompts_are_distinct_and_run_with_and_without_a_template():
    prompts = [prompt for workload in builtin() for prompt in workload.prompts]
    texts = [prompt.given(has_template=False) for prompt in prompts]
    assert len({" ".join(str(text).lower().split()) for text in texts}) == len(prompts)
    assert len({prompt.where for prompt in prompts}) == len(prompts)
    for prompt, text in zip(prompts, texts, strict=True):
        assert prompt.given(has_template=True) == [{"role": "user", "content": text}]
        assert text == str(text).strip()
        assert "\ufffd" not in text
        assert prompt.where.startswith("built in, ")
    assert prompts[6].where == "built in, chat 7"


def test_only_editing_and_summarising_bring_a_text_to_repeat():
    for workload in builtin():
        long = workload.name in ("code editing", "summarising")
        for prompt in workload.prompts:
            assert ("\n" in (prompt.text or "")) == long, prompt.where
            fenced = (prompt.text or "").count("```")
            assert fenced == (2 if workload.name == "code editing" else 0), prompt.where


@pytest.mark.model
def test_no_built_in_prompt_has_more_than_400_tokens(smollm2):
    import tokenizers

    encoder = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    for workload in builtin():
        for prompt in workload.prompts:
            assert 5 <= len(encoder.encode(prompt.text).ids) <= 400, prompt.where


def test_prompts_are_read_when_asked_for_and_not_before():
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
import specedge
assert "specedge.workloads" not in sys.modules
from specedge import workloads
assert not [path for path in opened if path.endswith(".jsonl")]
workloads.builtin()
assert len([path for path in opened if path.endswith(".jsonl")]) == 5
"""
    subprocess.run([sys.executable, "-c", code], cwd="/", check=True)


# A user's own file


def test_a_file_gives_its_classes_in_order_of_first_appearance(write):
    path = write(
        '{"prompt": "Fix: teh", "class": "mail"}',
        "",
        '{"text": "def f(x):\\n", "class": "code"}\r',
        "   \t",
        '{"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "hi 👋"}]}',
        '{"class": " mail ", "prompt": " keep my spaces\\u2028 "}',
    )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = f"my.jsonl, sha256 {digest[:12]}"
    user = {"role": "user", "content": "Fix: teh"}
    kept = " keep my spaces\u2028 "
    chat = ({"role": "system", "content": ""}, {"role": "user", "content": "hi 👋"})
    assert read(path) == (
        Workload(
            "mail",
            (
                WorkloadPrompt((user,), "Fix: teh", "my.jsonl, line 1"),
                WorkloadPrompt(({"role": "user", "content": kept},), kept, "my.jsonl, line 6"),
            ),
            source,
        ),
        Workload("code", (WorkloadPrompt(None, "def f(x):\n", "my.jsonl, line 3"),), source),
        Workload("user", (WorkloadPrompt(chat, None, "my.jsonl, line 5"),), source),
    )
    assert read(str(path)) == read(path)


def test_a_prompt_goes_through_the_template_where_there_is_one(write):
    lines = ('{"prompt": "a"}', '{"text": "b"}', '{"messages": [{"role": "user", "content": "c"}]}')
    prompt, text, messages = read(write(*lines))[0].prompts
    assert prompt.given(has_template=True) == [{"role": "user", "content": "a"}]
    assert prompt.given(has_template=False) == "a"
    assert text.given(has_template=True) == text.given(has_template=False) == "b"
    assert messages.given(has_template=True) == [{"role": "user", "content": "c"}]
    with pytest.raises(PromptError, match=r"my\.jsonl, line 3: .* no"):
        messages.given(has_template=False)


def test_a_named_pipe_is_read_like_a_file(write):
    path = write(GOOD)
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'"{sys.executable}" -c "import sys; from specedge.workloads import read; '
            f'print(read(sys.argv[1])[0].prompts[0].text)" <(cat "{path}")',
        ],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Name a river.\n"


DEEP = "[" * 100_000
BAD_LINES = {
    '{"prompt": "a"': r"invalid JSON at character \d+",
    "{'prompt': 'a'}": r"invalid JSON at character 2",
    '{"prompt": "a"} {"prompt": "b"}': "invalid JSON at character 17",
    '{"prompt": "a\tb"}': "invalid JSON",
    '"just text"': "found a string",
    "[1, 2]": "found an array",
    "null": "found null",
    "3.5": "found a number",
    DEEP: "nested too deeply",
    '{"prompt": ' + DEEP: "nested too deeply",
    '{"prompt": ' + "9" * 5000 + "}": "invalid JSON",
    "{}": 'exactly one of "prompt", "messages" and "text", found none',
    '{"class": "chat"}': "found none",
    '{"prompt": "a", "text": "b"}': 'found "prompt" and "text"',
    '{"prompt": "a", "prompt": "b"}': "'prompt' is there twice",
    '{"Prompt": "a"}': "the key 'Prompt' is not known",
    '{"prompt": "a", "\\n\\u001b": 1}': r"the key '\\n\\x1b' is not known",
    '{"' + "k" * 5000 + '": 1}': r"kkk\.\.\.' is not known",
    '{"prompt": 7}': '"prompt" is a number; expected a string',
    '{"prompt": null}': '"prompt" is null',
    '{"text": ["a"]}': '"text" is an array',
    '{"prompt": ""}': '"prompt" is empty',
    '{"prompt": " \\n\\t\\u00a0"}': '"prompt" holds only white space',
    '{"text": ""}': '"text" is empty',
    '{"prompt": "a\\u0000b"}': "NUL",
    '{"prompt": "a\\ud800b"}': r"character 1 is a lone surrogate \(U\+D800\)",
    '{"messages": "hello"}': '"messages" is a string',
    '{"messages": []}': "the list is empty",
    '{"messages": ["hello"]}': r"messages\[0\]: expected",
    '{"messages": [{"role": "user"}]}': r"messages\[0\]\.content: expected text, found nothing",
    '{"messages": [{"role": 1, "content": "a"}]}': r"messages\[0\]\.role: expected text",
    '{"messages": [{"role": "user", "content": " "}]}': "last of the messages is empty",
    '{"messages": [{"role": "user", "content": "\\udfff"}]}': "lone surrogate",
    '{"messages": [{"role": "user", "content": "\\u0000"}]}': r"messages\[0\] holds a NUL",
    '{"messages": [{"role": "user", "content": "a", "name": "b"}]}': "'name' is not supported",
    '{"prompt": "a", "class": 1}': '"class" is a number',
    '{"prompt": "a", "class": "  "}': '"class" is empty',
    '{"prompt": "a", "class": "x\\ny"}': "cannot be printed",
    '{"prompt": "a", "class": "' + "x" * 61 + '"}': "has 61 characters",
    '{"prompt": "a", "class": "\\ud800"}': "cannot be printed",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40])
def test_a_bad_line_is_refused_with_its_number_and_the_reason(write, line):
    message = refusal(write(GOOD, line, GOOD))
    assert "my.jsonl, line 3: " in message  # GOOD brings a blank line with it
    with pytest.raises(PromptError, match=BAD_LINES[line]):
        read(write(line))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it holds no prompt"),
        (b" \n\r\n\t\n", "it holds no prompt"),
        (b"\xef\xbb\xbf" + GOOD.encode(), "line 1: starts with a byte order mark"),
        (GOOD.encode("utf-16"), "line 1: this is UTF-16"),
        (GOOD.encode("utf-16-be"), "line 1: a NUL byte at byte 1"),
        (GOOD.encode() + b"\0" * 100, "line 2: a NUL byte at byte 1"),
        (GOOD.encode() + '{"prompt": "é"}'.encode("latin-1"), "line 2: invalid UTF-8 at byte 13"),
        (b"\x89PNG\r\n\x1a\n", "line 1: invalid UTF-8 at byte 1 (0x89)"),
    ],
)
def test_a_file_that_is_no_text_is_refused(write, raw, why):
    assert why in refusal(write(raw))


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "none.jsonl")
    assert "is a folder" in refusal(tmp_path)
    assert "cannot be read" in refusal(f"{tmp_path}/{'x' * 300}")
    assert "cannot be read" in refusal(str(tmp_path / "a\0b"))


def test_a_huge_file_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    assert "larger than 64 MiB" in refusal(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_a_device_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 20)
    assert "larger than 1 MiB" in refusal("/dev/zero")


def test_a_file_of_just_the_largest_size_is_read(write, monkeypatch):
    monkeypatch.setattr(reading, "MAX_BYTES", len(GOOD))
    assert len(read(write(GOOD))) == 1
    monkeypatch.setattr(reading, "MAX_BYTES", len(GOOD) - 1)
    assert "larger than" in refusal(write(GOOD))


def test_too_many_prompts_are_refused_and_the_limit_is_not(write, monkeypatch):
    monkeypatch.setattr(reading, "MAX_PROMPTS", 3)
    assert len(read(write(*[GOOD.strip()] * 3))[0].prompts) == 3
    assert "line 4: more than 3 prompts" in refusal(write(*[GOOD.strip()] * 4))


def test_what_json_writes_is_read_back(write):
    texts = ["{}", '"', "\\", "a\u2028b\u0085c\x0bd", "𝄞", "\x7f", "tab\tnew\nline\r"]
    lines = [
        json.dumps({"text": text}, ensure_ascii=escaped)
        for text in texts
        for escaped in (True, False)
    ]
    (workload,) = read(write(*lines))
    assert [prompt.text for prompt in workload.prompts] == [text for text in texts for _ in "ab"]


PIECES = st.sampled_from(
    [GOOD.encode(), b"{", b"}", b'"prompt"', b'"messages"', b":", b"[", b"]", b'"a"', b"\n"]
)


@given(raw=st.lists(PIECES | st.binary(max_size=4), max_size=12).map(b"".join))
def test_any_bytes_give_workloads_or_a_refusal_and_nothing_else(raw, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(raw)
    try:
        n_read = sum(len(workload.prompts) for workload in read(path))
    except PromptError:
        assert refusal(path)
    else:
        assert n_read == sum(bool(line.strip()) for line in raw.split(b"\n")) > 0


# Whether it fits


@pytest.mark.parametrize(
    ("tokens", "context", "room"), [(1, 8, 7), (8, 8, 0), (4000, 4096, 96), (1, 1, 0)]
)
def test_a_prompt_that_leaves_the_room_fits_and_one_token_more_does_not(tokens, context, room):
    prompt = WorkloadPrompt(None, "x", "my.jsonl, line 12")
    fits(prompt, tokens, context, room)
    with pytest.raises(PromptError, match=r"^my\.jsonl, line 12: the prompt has "):
        fits(prompt, tokens + 1, context, room)


def test_the_refusal_says_how_much_there_is_and_how_much_fits():
    prompt = WorkloadPrompt(None, "x", "built in, chat 7")
    with pytest.raises(PromptError) as caught:
        fits(prompt, 5120, 4096, 96)
    assert str(caught.value) == (
        "built in, chat 7: the prompt has 5,120 tokens, the context of 4,096 leaves 4,000 beside "
        "96 for the answer; shorten the prompt, or export with a larger context"
    )
    with pytest.raises(PromptError, match="leaves 0 beside 100 "):
        fits(prompt, 1, 64, 100)
