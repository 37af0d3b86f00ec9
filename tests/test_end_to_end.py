"""SmolLM2 from its package to text: equality, sense, streams, the command line, the KV it keeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge
from equality_cases import LENGTHS, Pair, ProposerSet, Run, opened, run, smallest_margin
from specedge.contract import Ids
from specedge.engines.base import prefill
from specedge.export.calibration import TEXT
from specedge.model import Model
from tests import real
from tests.test_guards import HEAVY, inside, loaded_after

pytestmark = pytest.mark.model

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
# Every draft length, and every proposer over both short and long drafts.
CASES: list[tuple[int, ProposerSet]] = [
    (1, "draft"),
    (2, "both"),
    (4, "draft"),
    (7, "both"),
    (15, "draft"),
    (15, "ngram"),
]


@pytest.fixture(scope="module")
def full(selfdraft: Path) -> Iterator[Model]:
    """Full precision, with lookup and its int4 copy as proposers."""
    with specedge.load(selfdraft, speculation="on") as model:
        yield model


@pytest.fixture(scope="module")
def small(smollm2: Path) -> Iterator[Model]:
    """int4, with lookup."""
    with specedge.load(smollm2, speculation="on") as model:
        yield model


# --- equality -----------------------------------------------------------------------------------


class Texts:
    """Prompts as ids, and what plain decoding says to them."""

    def __init__(self, pair: Pair, model: Model) -> None:
        self.pair, self.model = pair, model
        self.plain: dict[str, Run] = {}

    def ids(self, name: str) -> Ids:
        return self.model.encode([{"role": "user", "content": real.PROMPTS[name]}])[0]

    def check(self, name: str, k: int, which: ProposerSet, budget: int = 32) -> Run:
        ids, target = self.ids(name), self.pair.target
        if name not in self.plain:
            self.plain[name] = run(target, ids, max_tokens=budget)
        plain = self.plain[name]
        got = run(target, ids, k, self.pair.proposers(which), budget)
        if got.tokens != plain.tokens and target.width_noise and target.spec.precision != "fp32":
            margin = smallest_margin(target, ids, plain.tokens)
            pytest.skip(
                f"int4 kernels of this processor differ between widths by up to "
                f"{target.width_noise:.3g}; the smallest top-2 margin is {margin:.3g}"
            )
        assert got.tokens == plain.tokens
        return got


@pytest.fixture(scope="module")
def full_texts(selfdraft: Path, full: Model) -> Iterator[Texts]:
    with opened(selfdraft, context=512) as pair:
        yield Texts(pair, full)


@pytest.fixture(scope="module")
def small_texts(smollm2: Path, small: Model) -> Iterator[Texts]:
    with opened(smollm2, context=512) as pair:
        yield Texts(pair, small)


@pytest.mark.parametrize(("k", "which"), CASES)
def test_full_precision_says_the_same_with_every_proposer(
    full_texts: Texts, k: int, which: ProposerSet
) -> None:
    runs = [full_texts.check(name, k, which).metrics for name in real.PROMPTS]
    drafted, accepted = (sum(getattr(m, key) for m in runs) for key in ("proposed", "accepted"))
    assert 0 < accepted < drafted


@pytest.mark.parametrize("k", LENGTHS)
def test_int4_says_the_same_with_lookup(small_texts: Texts, k: int) -> None:
    runs = [small_texts.check(name, k, "ngram").metrics for name in real.PROMPTS]
    drafted, accepted = (sum(getattr(m, key) for m in runs) for key in ("proposed", "accepted"))
    assert 0 < accepted <= drafted


@pytest.mark.parametrize("texts", ["full_texts", "small_texts"])
def test_widths_agree_far_into_a_real_text(texts: str, request: pytest.FixtureRequest) -> None:
    """What was measured at load over the first rows holds at 450."""
    target = request.getfixturevalue(texts).pair.target
    if target.width_noise:
        pytest.skip(f"no widths agree on this processor: {target.width_noise:.3g} between them")
    ids = request.getfixturevalue(texts).model.tokenizer.encode(TEXT)[:482]
    slot = target.new_slot()
    prefill(target, slot, ids[:450], 0)
    by_width = {}
    for width in (1, 2, 5, 8, 16):
        calls = [
            target.forward(slot, ids[at : at + width], at, width).logits[: 482 - at].copy()
            for at in range(450, 482 - width + 1, width)
        ]
        by_width[width] = np.concatenate(calls)
    target.release(slot)
    for logits in by_width.values():
        np.testing.assert_array_equal(logits, by_width[1][: len(logits)])


def test_a_prompt_of_several_chunks_says_the_same(small: Model, smollm2: Path) -> None:
    prompt = [{"role": "user", "content": TEXT[:2400] + "\nRepeat the first sentence."}]
    spoken = small.generate(prompt, max_tokens=24)
    assert spoken.prompt_tokens > 4 * 128
    with specedge.load(smollm2, speculation="off") as plain:
        assert plain.generate(prompt, max_tokens=24).tokens == spoken.tokens


def test_a_context_is_filled_to_its_last_row(smollm2: Path, small: Model) -> None:
    said = []
    for mode in ("off", "on"):
        with specedge.load(smollm2, context=64, speculation=mode, draft_length=15) as model:
            ids = small.tokenizer.encode("one two three four " * 10)[:40]
            result = model.generate(ids, max_tokens=None, ignore_eos=True)
            assert (len(result.tokens), result.finish_reason) == (25, "length")
            said.append(result.tokens)
            whole = model.generate(
                small.tokenizer.encode(TEXT)[:64], max_tokens=None, ignore_eos=True
            )
            assert (len(whole.tokens), whole.finish_reason) == (1, "length")
            with pytest.raises(
                specedge.PromptError, match="65 tokens do not fit the context of 64"
            ):
                model.generate(small.tokenizer.encode(TEXT)[:65])
    assert said[0] == said[1]


# --- sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["full", "small"])
def test_the_capital_of_france_is_paris(model: str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(model).generate(FRANCE, max_tokens=40)
    assert "Paris" in result.text
    assert result.text.isprintable()
    assert result.finish_reason == "stop"


def test_a_stream_says_what_generate_says(full: Model) -> None:
    prompt = [{"role": "user", "content": "Name three rivers in Europe — with their sources."}]
    whole = full.generate(prompt, max_tokens=40)
    events = list(full.stream(prompt, max_tokens=40))
    assert "".join(event.text for event in events) == whole.text
    assert [token for event in events for token in event.tokens] == whole.tokens
    assert full.tokenizer.decode(whole.tokens) == whole.text
    assert events[-1].result is not None
    assert events[-1].result.metrics.ttft_ms > 0


def test_a_self_draft_saves_calls_of_its_target(full: Model) -> None:
    result = full.generate([{"role": "user", "content": real.PROMPTS["chat"]}], max_tokens=48)
    assert result.speculation.on
    assert result.metrics.acceptance_rate > 0.3
    assert result.metrics.rounds < 0.7 * len(result.tokens)
    assert set(result.metrics.proposers) <= {"draft", "ngram"}


def test_a_run_that_was_never_probed_measures_says_the_same_and_leaves_a_record(
    selfdraft: Path, full: Model, tmp_path: Path
) -> None:
    """In a folder of its own: of links, so that no weights are copied."""
    folder = tmp_path / "linked"
    ignored = shutil.ignore_patterns("probes")
    shutil.copytree(selfdraft, folder, copy_function=os.link, ignore=ignored)
    asked = [{"role": "user", "content": real.PROMPTS["chat"]}]
    want = full.generate(asked, max_tokens=200, ignore_eos=True)
    with specedge.load(folder, speculation="auto") as model:
        got = model.generate(asked, max_tokens=200, ignore_eos=True, explain=True)
    assert got.tokens == want.tokens
    assert any(report.why == "measure" for report in got.rounds or ())
    (record,) = (folder / "probes").glob("*.json")
    assert json.loads(record.read_text())["curves"]["draft"]
    with specedge.load(folder, speculation="auto") as model:
        again = model.generate(asked, max_tokens=200, ignore_eos=True, explain=True)
    assert again.tokens == want.tokens
    assert not any(report.why == "measure" for report in again.rounds or ())


def test_a_stop_string_ends_the_text_before_it(full: Model) -> None:
    whole = full.generate(FRANCE, max_tokens=40).text
    result = full.generate(FRANCE, max_tokens=40, stop=["Par"])
    assert (result.text, result.finish_reason) == (whole[: whole.index("Par")], "stop_string")


# --- the KV between turns -----------------------------------------------------------------------


def test_a_second_turn_runs_only_what_is_new(full: Model) -> None:
    chat = full.chat("You are terse.")
    first = chat.send("What is the capital of France?", max_tokens=30)
    second = chat.send("And of Italy?", max_tokens=30)
    assert first.finish_reason == "stop"
    # the answer's own tokens are not run again; what the template puts around them is
    new = second.prompt_tokens - first.prompt_tokens - len(first.tokens)
    assert second.metrics.prefill_tokens <= new + 2
    assert second.metrics.prefill_tokens < first.prompt_tokens
    alone = full.generate("Something else entirely.", max_tokens=4)
    assert alone.metrics.prefill_tokens >= alone.prompt_tokens - 1
    again = full.generate(chat.messages[:-1], max_tokens=30)
    assert again.tokens == second.tokens
    assert again.metrics.prefill_tokens == again.prompt_tokens


# --- the command line ---------------------------------------------------------------------------


def test_run_prints_the_text_of_the_api(small: Model, smollm2: Path) -> None:
    wanted = small.generate(FRANCE, max_tokens=30)
    with real.command_line("run", smollm2, FRANCE[0]["content"], "--max-tokens", "30") as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (0, wanted.text + "\n")
    assert err.startswith(f"[{len(wanted.tokens)} tokens, stop, ")
    args = ("run", smollm2, FRANCE[0]["content"], "--max-tokens", "30", "--json")
    with real.command_line(*args) as process:
        out, err = process.communicate()
    *events, result = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert "".join(event["text"] for event in events) == result["text"] == wanted.text
    assert result["tokens"] == wanted.tokens


def test_chat_answers_each_line_of_a_pipe(small: Model, smollm2: Path) -> None:
    chat = small.chat()
    questions = ["What is the capital of France?", "And of Italy?"]
    wanted = [chat.send(question, max_tokens=20).text for question in questions]
    with real.command_line("chat", smollm2, "--max-tokens", "20", stdin=-1) as process:
        out, err = process.communicate("".join(f"{question}\n" for question in questions))
    assert (process.returncode, out) == (0, "".join(f"{text}\n" for text in wanted)), err


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_was_said(smollm2: Path, as_json: bool) -> None:
    options = ["--max-tokens", "2000", "--ignore-eos", *(["--json"] if as_json else [])]
    with real.command_line("run", smollm2, "Write a long story.", *options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.read(120)
        process.send_signal(signal.SIGINT)
        out, err = said + process.stdout.read(), process.stderr.read()
    assert process.returncode == 130, err
    assert out.endswith("\n")
    assert "Traceback" not in err
    if as_json:
        *events, result = [json.loads(line) for line in out.splitlines()]
        assert result["finish_reason"] == "cancelled"
        printed = "".join(event["text"] for event in events)
        assert printed != ""
        assert result["text"].startswith(printed)
        assert 0 < len(result["tokens"]) < 2000
    else:
        assert ", cancelled, " in err


def test_a_run_on_the_real_engine_loads_nothing_that_export_needs(smollm2: Path) -> None:
    code = "import sys\nfrom specedge.cli import invoke\nassert invoke(sys.argv[1:]) == 0"
    loaded = loaded_after(code, "run", str(smollm2), "Say hello.", "--max-tokens", "8")
    assert {"onnxruntime", "specedge.loop", "specedge.engines.ort"} <= loaded
    assert loaded & (HEAVY | {"rich"}) == set()
    assert not any(inside(module, "specedge.export") for module in loaded)


def test_a_bundle_is_not_written_by_using_it(small: Model, smollm2: Path) -> None:
    def state() -> dict[str, Any]:
        return {str(p): p.stat().st_mtime_ns for p in [smollm2, *smollm2.rglob("*")]}

    before = state()
    small.generate(FRANCE, max_tokens=4)
    with specedge.load(smollm2) as second:
        second.chat().send("hello", max_tokens=4)
    assert state() == before
