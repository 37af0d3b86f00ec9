"""Ways that say another thing than plain decoding are named."""

from __future__ import annotations

from types import SimpleNamespace as Made

from specedge.loadtest.outputs import Outputs
from specedge.loadtest.recording import output_hash


def served_as(output, way="plain", number=0, rule="greedy", failure=None, **options):
    record = Made(way=way, number=number, output=output, prompt=f"chat {number + 1}")
    return Made(failure=failure, result=Made(acceptance=rule), job=Made(options=options)), record


def notes(*served, noise=0.0):
    outputs = Outputs(noise)
    for each in served:
        outputs.add(*each)
    return outputs.notes()


def test_a_plain_way_that_says_another_thing_each_time_is_named():
    (note,) = notes(served_as("a"), served_as("b"))
    assert note.startswith("outputs of plain differ between repetitions on 1 of 1: chat 1")


def test_width_noise_is_given_as_the_likely_reason():
    (note,) = notes(served_as("a"), served_as("b", way="auto"), noise=0.002)
    assert "near-ties may fall another way" in note
    assert "0.002" in note


def test_drawn_outputs_that_depend_on_drafts_are_not_compared():
    (note,) = notes(served_as("a", rule="rejection"), served_as("b", way="auto", rule="rejection"))
    assert "not compared: with rejection acceptance the tokens that are drawn depend on" in note


def test_drawn_outputs_are_compared_with_a_seed_and_not_without():
    (note,) = notes(*(served_as(way, way, rule="coupled") for way in ("plain", "auto")))
    assert "not compared: without a seed every request draws other tokens" in note
    (note,) = notes(*(served_as(way, way, rule="coupled", seed=1) for way in ("plain", "auto")))
    assert note.startswith("outputs of auto differ from plain decoding's on 1 of 1")


def test_failed_requests_are_not_compared():
    assert notes(served_as("a"), served_as("b", way="auto", failure="gone")) == []


def test_many_differences_are_counted_and_few_named():
    each = [served_as(way, way, number) for number in range(9) for way in ("plain", "auto")]
    (note,) = notes(*each)
    assert "on 9 of 9: chat 1 (request 0)" in note
    assert "and 4 more" in note


def test_a_hash_is_of_the_ids_alone():
    assert output_hash([1, 2]) == output_hash([1, 2])
    assert len({output_hash(ids) for ids in ([], [1], [2], [1, 2], [12], [2, 1])}) == 6
