"""The table of docs/sampling.md, cell by cell: an option has its effect, or is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from specedge.errors import OptionError
from specedge.options import OptionKeywords
from specedge.proposers import NgramProposer
from tests import tiny

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sampling.md"
INNER = tiny.byte_tokenizer()
VOCAB = INNER.get_vocab_size()
LETTERS = [INNER.token_to_id(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
X = INNER.token_to_id("x")
PROMPT = "ab"

SAMPLED = {"temperature": 1.0, "seed": 7}
MODES = {
    "greedy": {"temperature": 0.0, "seed": 7},
    "rejection": {**SAMPLED, "acceptance": "rejection"},
    "block": {**SAMPLED, "acceptance": "block"},
    "coupled": {**SAMPLED, "acceptance": "coupled"},
    "n > 1": {**SAMPLED, "n": 3},
    "chat": SAMPLED,
}


def table() -> dict[str, dict[str, str]]:
    """Cells by option and mode."""
    text = PAGE.read_text(encoding="utf-8").partition("## Every option in every mode")[2]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in rows}


CELLS = [(option, mode, cell) for option, row in table().items() for mode, cell in row.items()]


def test_the_table_has_every_option_and_mode_and_nothing_else():
    assert table().keys() == OptionKeywords.__annotations__.keys()
    for row in table().values():
        assert list(row) == list(MODES)
    for _, _, cell in CELLS:
        assert re.fullmatch("honoured|honoured, changes nothing|refused: .+", cell)


def letters(tokens):
    """Scores of a model that writes letters, the next by the last alone."""
    row = np.full(VOCAB, -30, np.float32)
    row[LETTERS] = np.random.default_rng(int(tokens[-1])).normal(0, 1.5, len(LETTERS))
    return row


def ending(tokens):
    """The same, eager to end."""
    row = letters(tokens)
    row[tiny.EOS] = row.max() + 3
    return row


@pytest.fixture(scope="module", params=["plain", "speculative"])
def models(request, tmp_path_factory):
    """Two models, one that goes on and one that ends."""
    folder = tiny.write_bundle(tmp_path_factory.mktemp("table"))
    made = {}
    for scores in (letters, ending):
        proposers = [NgramProposer(1, 3)] if request.param == "speculative" else []
        made[scores], _ = tiny.open_model(folder, scores=scores, proposers=proposers)
    yield made
    for model in made.values():
        model.close()


def greedier(got, plain, greedy):
    return got.tokens == greedy.tokens != plain.tokens


def more_varied(got, plain, greedy):
    return len(set(got.tokens)) > len(set(plain.tokens))


# By option: its value, given the result without it; and whether the result with it shows it.
EFFECTS = {
    "max_tokens": (lambda plain: 5, lambda got, plain, _: got.tokens == plain.tokens[:5]),
    "stop": (
        lambda plain: plain.text[5:7],
        lambda got, plain, _: got.text == plain.text[: plain.text.index(plain.text[5:7])],
    ),
    "ignore_eos": (lambda plain: True, lambda got, plain, _: len(got.tokens) > len(plain.tokens)),
    "echo": (lambda plain: True, lambda got, plain, _: got.text == PROMPT + plain.text),
    "logprobs": (
        lambda plain: 2,
        lambda got, plain, _: [entry.token for entry in got.logprobs] == plain.tokens,
    ),
    "explain": (
        lambda plain: True,
        lambda got, plain, _: (
            got.tokens == plain.tokens
            and sum(each.committed for each in got.rounds) == len(got.tokens) - 1
        ),
    ),
    "temperature": (lambda plain: 1e-6, greedier),
    "top_k": (lambda plain: 1, greedier),
    "top_p": (lambda plain: 1e-9, greedier),
    "min_p": (lambda plain: 1, greedier),
    "repetition_penalty": (
        lambda plain: 0.01,  # so that what was said is said again
        lambda got, plain, _: len(set(got.tokens)) < len(set(plain.tokens)) / 2,
    ),
    "frequency_penalty": (lambda plain: 2, more_varied),
    "presence_penalty": (lambda plain: 2, more_varied),
    "logit_bias": (lambda plain: {X: 100}, lambda got, *_: set(got.tokens) == {X}),
    "banned_tokens": (
        lambda plain: plain.tokens[:2],
        lambda got, plain, _: not set(plain.tokens[:2]) & set(got.tokens),
    ),
    "min_tokens": (
        lambda plain: 10,
        lambda got, plain, _: len(plain.tokens) < 10 <= len(got.tokens),
    ),
    "acceptance": (lambda plain: "block", lambda got, plain, _: got.acceptance == "block"),
    "seed": (
        lambda plain: 11,
        lambda got, plain, _: got.seed == 11 and got.tokens != plain.tokens,
    ),
    "n": (
        lambda plain: 4,
        lambda got, plain, _: (
            len({sample.text for sample in got.samples}) == 4 and got.tokens == plain.tokens
        ),
    ),
    "json_schema": (
        lambda plain: {"enum": ["ab", "cd"]},
        lambda got, *_: got.text in ('"ab"', '"cd"'),
    ),
    "regex": (lambda plain: "[0-9]{4}", lambda got, *_: re.fullmatch("[0-9]{4}", got.text)),
    "grammar": (
        lambda plain: 'start: "no" | "yes" "!"',
        lambda got, *_: got.text in ("no", "yes!"),
    ),
}


@pytest.mark.parametrize(("option", "mode", "cell"), CELLS)
def test_a_cell_says_what_happens(models, option, mode, cell):
    model = models[ending if option in ("ignore_eos", "min_tokens") else letters]

    def run(**options):
        given = {"max_tokens": 20, **options}
        return (
            model.chat().send(PROMPT, **given)
            if mode == "chat"
            else model.generate(PROMPT, **given)
        )

    base, (value, shows) = MODES[mode], EFFECTS[option]
    if (option, mode) == ("temperature", "greedy"):
        base, value = SAMPLED, lambda plain: 0
    elif option == "acceptance" and mode in ("rejection", "block", "coupled"):
        base, value, shows = SAMPLED, lambda plain: mode, lambda got, *_: got.acceptance == mode
    plain = run(**base)
    given = {option: value(plain)}
    if cell.startswith("refused"):
        with pytest.raises(OptionError, match=f"^{option}: "):
            run(**base | given)
        return
    got = run(**base | given)
    if cell.endswith("changes nothing"):
        assert (got.tokens, got.acceptance) == (plain.tokens, plain.acceptance)
    else:
        assert shows(got, plain, run(temperature=0))
    assert run(**base | given).tokens == got.tokens
