from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from specedge.contract import PairingProof, SourceRecord
from specedge.errors import PairingError
from specedge.export.checkpoint import Checkpoint, TokenizerFiles
from specedge.export.pair import settled
from specedge.export.pairing import examine
from specedge.progress import Silent
from specedge.vocabulary import read_vocabulary, vocabulary_hash

BASE: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 6,
            "content": "<|end|>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5},
        "merges": ["a b", "b c", "ab c"],
    },
}


class Rows:
    """A tensor map that knows one shape."""

    def __init__(self, rows: int) -> None:
        self.count = rows

    def names(self) -> list[str]:
        return ["model.embed_tokens.weight"]

    def shape(self, name: str) -> tuple[int, ...]:
        return (self.count, 4)

    def rows(self, name: str, start: int, stop: int) -> Any:
        raise AssertionError("pairing reads no weights")

    def close(self) -> None: ...


def checkpoint(tokenizer: dict[str, Any] | None = None, **changes: Any) -> Checkpoint:
    made = {
        "json": json.dumps(BASE if tokenizer is None else tokenizer),
        "chat_template": "{{ messages }}",
        "bos_id": None,
        "eos_ids": [6],
        "pad_id": None,
        "adds_bos": False,
        "vocab": 7,
    }
    rows, longest = changes.pop("rows", 8), changes.pop("longest", 4096)
    record = SourceRecord(kind="folder", reference="x", sha256=None, licence=None)
    files = TokenizerFiles(**(made | changes))
    return Checkpoint({"max_position_embeddings": longest}, Rows(rows), files, record)


def edited(edit: Any) -> dict[str, Any]:
    tokenizer = copy.deepcopy(BASE)
    edit(tokenizer)
    return tokenizer


def compare(target: Checkpoint, draft: Checkpoint, context: int) -> PairingProof:
    """Of models that embed equally many ids, as an export that insists on the draft."""
    return settled(target, draft, (6, 6), context, drop=False, progress=Silent())


def test_equal_tokenizers_pair_without_a_note_whatever_their_padding():
    proof = compare(checkpoint(rows=8), checkpoint(rows=16), 1024)
    assert proof.usable
    assert proof.notes == []
    assert (proof.compared_ids, proof.first_difference) == (7, None)
    assert (proof.target_padded_to, proof.draft_padded_to) == (8, 16)


def test_a_swapped_token_is_refused_with_both_strings():
    def swap(tokenizer):
        tokenizer["model"]["vocab"] |= {"ab": 4, "bc": 3}

    with pytest.raises(PairingError, match=r"at id 3: 'bc' in the draft, 'ab' in the target"):
        compare(checkpoint(), checkpoint(edited(swap)), 1024)


def test_an_id_that_only_one_of_them_knows_is_a_difference():
    def add(tokenizer):
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 7, "content": "<x>"})

    with pytest.raises(PairingError, match="at id 7: '<x>' in the draft, no token in the target"):
        compare(checkpoint(), checkpoint(edited(add)), 1024)
    with pytest.raises(PairingError, match="at id 7: no token in the draft, '<x>' in the target"):
        compare(checkpoint(edited(add)), checkpoint(), 1024)


def test_a_draft_that_embeds_fewer_ids_is_refused_or_dropped():
    said = "the draft embeds 5 ids, the target 6"
    with pytest.raises(PairingError, match=f"{said}; export a draft of the same tokenizer, or"):
        settled(checkpoint(), checkpoint(), (6, 5), 1024, drop=False, progress=Silent())
    proof = settled(checkpoint(), checkpoint(), (6, 5), 1024, drop=True, progress=Silent())
    assert (proof.usable, proof.first_difference, proof.notes) == (False, 5, [said])


def test_a_dropped_draft_leaves_a_proof_of_why():
    def rename(tokenizer):
        tokenizer["added_tokens"][0]["content"] = "</s>"

    proof = examine(checkpoint(), checkpoint(edited(rename)), 1024)
    assert not proof.usable
    assert proof.first_difference == 6
    assert "'</s>' in the draft, '<|end|>' in the target" in proof.notes[0]


def test_the_difference_reported_is_the_first_that_a_linear_walk_finds():
    def change(tokenizer):
        names = {i: token for token, i in tokenizer["model"]["vocab"].items()}
        for i in (5, 2, 4):
            names[i] += "!"
        tokenizer["model"]["vocab"] = {token: i for i, token in names.items()}
        tokenizer["model"]["merges"] = []

    other = edited(change)
    ours, theirs = read_vocabulary(json.dumps(BASE)), read_vocabulary(json.dumps(other))
    walked = next(i for i in range(7) if ours[i] != theirs[i])
    assert examine(checkpoint(), checkpoint(other), 1024).first_difference == walked == 2


def test_equal_tokens_with_other_merges_are_noticed():
    def reorder(tokenizer):
        tokenizer["model"]["merges"] = ["b c", "a b", "ab c"]

    other = edited(reorder)
    split = [Tokenizer.from_str(json.dumps(t)).encode("abc").ids for t in (BASE, other)]
    assert split[0] != split[1], "the fixture must really encode differently"
    proof = compare(checkpoint(), checkpoint(other), 1024)
    assert proof.usable
    assert any("merges" in note for note in proof.notes)


def test_the_two_notations_of_merges_are_the_same_merges():
    def pairs(tokenizer):
        tokenizer["model"]["merges"] = [["a", "b"], ["b", "c"], ["ab", "c"]]

    assert compare(checkpoint(), checkpoint(edited(pairs)), 1024).notes == []


def test_a_special_flag_that_differs_is_a_note():
    def unflag(tokenizer):
        tokenizer["added_tokens"][0]["special"] = False

    (note,) = compare(checkpoint(), checkpoint(edited(unflag)), 1024).notes
    assert "first at id 6 ('<|end|>')" in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eos_ids": [5, 6]}, "end-of-text ids are [5, 6] in the draft, [6] are used"),
        ({"bos_id": 0}, "begin-of-text id is 0 in the draft, None is used"),
        ({"chat_template": None}, "chat templates differ"),
        ({"longest": 512}, "made for 512 tokens"),
    ],
)
def test_what_the_target_alone_decides_is_a_note(changes, words):
    (note,) = compare(checkpoint(), checkpoint(**changes), 1024).notes
    assert words in note


def test_the_vocabulary_hash_is_what_its_definition_says():
    text = "".join(f"{i}\t{t}\n" for i, t in enumerate(["a", "b", "c", "ab", "bc", "abc"]))
    expected = hashlib.sha256((text + "6\t<|end|>\n").encode()).hexdigest()
    assert vocabulary_hash(json.dumps(BASE)) == expected


def test_a_unigram_vocabulary_is_read_in_list_order():
    tokenizer = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["\u2581a", -1.5]]}}
    assert read_vocabulary(json.dumps(tokenizer)) == {0: "<unk>", 1: "\u2581a"}
