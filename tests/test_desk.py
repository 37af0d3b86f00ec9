"""A desk: one bundle, several ways, and somebody who can draft."""

from __future__ import annotations

import pytest

from commands import alphabet
from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import OptionError
from tiny import write_bundle


@pytest.mark.parametrize(
    ("made", "asked", "said"),
    [
        ({"max_verify": 1}, {}, "a call verifies 1 token at most (max_verify 1, context 256)"),
        ({}, {"context": 1}, "a call verifies 1 token at most (max_verify 16, context 1)"),
        ({}, {"proposers": []}, "of the proposers asked for (none) this bundle can run none"),
        ({}, {"proposers": ["draft"]}, "of the proposers asked for (draft) this bundle can run"),
        ({}, {"proposers": ["drafts"]}, "no proposer 'drafts'; did you mean draft?"),
    ],
)
def test_where_nobody_can_draft_there_is_nothing_to_compare(tmp_path, made, asked, said):
    bundle = write_bundle(tmp_path / "tiny", rule=alphabet(), **made)
    with pytest.raises(OptionError) as error:
        Desk(bundle, engine="fake", **asked)
    assert said in str(error.value)
    assert '"auto"' not in str(error.value)  # a desk has no such choice


@pytest.mark.parametrize(
    "way",
    [Way("on", ("ngram",), 0), Way("on", ("ngram",), 16), Way("on", (), 1), Way("on", ("who",), 1)],
)
def test_a_way_that_the_desk_does_not_have_is_refused(tmp_path, way):
    with (
        Desk(write_bundle(tmp_path / "tiny", rule=alphabet()), engine="fake") as desk,
        pytest.raises(OptionError),
    ):
        desk.speculator(way)


def test_every_proposer_has_every_draft_length_that_fits(tmp_path):
    bundle = write_bundle(tmp_path / "tiny", rule=alphabet(), draft=True, max_verify=8)
    with Desk(bundle, engine="fake") as desk:
        assert desk.ways((1, 7, 8)) == [
            PLAIN,
            AUTO,
            *(Way("on", (name,), k) for name in ("ngram", "draft") for k in (1, 7)),
        ]
        answers = {desk.ask(way, "a b", max_tokens=6).text for way in desk.ways((1, 7))}
        assert len(answers) == 1
        assert desk.draft_engine is not None
        assert desk.draft_engine.spec.role == "draft"
