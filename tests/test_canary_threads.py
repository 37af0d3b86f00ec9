"""Who comes while a canary is at work: another thread, Ctrl-C, or the end of the model."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from canary_desk import TEXT, Watched, watched
from specedge.canary.turns import Turn, Turns
from specedge.errors import BusyError

GREEDY = {"max_tokens": 22}


@pytest.fixture
def folder(tmp_path, private_cache):
    return tmp_path / "bundle"


def comparing(desk: Watched) -> threading.Thread:
    """A thread whose answer is out and whose second decode is under way, 200 rounds long."""
    answered = threading.Event()

    def work() -> None:
        for event in desk.model.stream(TEXT, max_tokens=200):
            if event.result is not None:
                answered.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert answered.wait(30)
    calls = len(desk.engine.calls)
    until(lambda: len(desk.engine.calls) > calls + 2)
    return thread


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


@pytest.mark.parametrize("asked", ["a request", "to forget", "to close"])
def test_another_thread_interrupts_it_after_a_round_at_most(folder, asked):
    desk = watched(folder, delay_ms=4.0)
    thread = comparing(desk)
    before = len(desk.engine.calls)
    if asked == "a request":
        desk.canary.share = 0.0
        result = desk.model.generate("xyzabcdef", **GREEDY)
        after = desk.engine.calls[before:]
        assert result.text.startswith("ghi")
        # the round that was running, perhaps one that had begun; then this prompt
        assert next(i for i, call in enumerate(after) if call.rows == 1 and call.width > 5) <= 2
    elif asked == "to forget":
        desk.model.forget()
    else:
        desk.model.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(desk.engine.calls) < before + 40
    totals = desk.canary.record.totals
    assert (totals.interrupted, totals.compared, totals.failures) == (1, 0, 0)


def held_back(text: str) -> str:
    """A stop string that this text is the beginning of, so none of it leaves for a while."""
    return f"{text}!"


def test_it_is_interrupted_between_rounds_even_while_no_text_leaves(folder):
    desk = watched(folder, delay_ms=4.0)
    answer = desk.model.generate(TEXT, max_tokens=100, stop=held_back("k")).text
    desk.canary.share = 1.0
    answered = threading.Event()
    stop = held_back(answer[2:90])

    def work() -> None:
        for event in desk.model.stream(TEXT, max_tokens=100, stop=stop):
            if event.result is not None:
                answered.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert answered.wait(30)
    calls = len(desk.engine.calls)
    until(lambda: len(desk.engine.calls) > calls + 5)
    before = len(desk.engine.calls)
    desk.model.forget()
    assert len(desk.engine.calls) <= before + 2
    thread.join(30)
    assert desk.canary.record.totals.interrupted == 1


def running(desk: Watched, prompt: str):
    """A request with its last event out, and not asked for more."""
    stream = desk.model.stream(prompt, **GREEDY)
    while next(stream).result is None:
        pass
    return stream


def test_a_request_that_runs_is_not_disturbed_by_a_canary_that_wants_to_begin(folder):
    desk = watched(folder)
    first = running(desk, TEXT)
    second = desk.model.stream("xyzabcdef", **GREEDY)
    next(second)
    with pytest.raises(StopIteration):
        next(first)
    rest = "".join(event.text for event in second)
    assert rest.startswith("hijkl")
    assert desk.canary.record.totals.compared == 1  # the second one's


def test_a_request_whose_rows_another_has_taken_is_not_read_again(folder):
    desk = watched(folder)
    first = running(desk, TEXT)
    running(desk, "xyzabcdef")
    calls = len(desk.engine.calls)
    with pytest.raises(StopIteration):
        next(first)
    assert len(desk.engine.calls) == calls
    totals = desk.canary.record.totals
    assert (totals.interrupted, totals.compared) == (1, 0)


def test_many_threads_are_served_and_none_is_refused_for_a_canarys_sake(folder):
    desk = watched(folder)
    lock, texts = threading.Lock(), []

    def work() -> None:
        for _ in range(12):
            stream = None
            with lock:  # one request at a time; comparisons come outside
                stream = desk.model.stream(TEXT, **GREEDY)
                said = []
                for event in stream:
                    said.append(event.text)
                    if event.result is not None:
                        break
            texts.append("".join(said))
            for _ in stream:
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 36
    assert len(set(texts)) == 1
    totals = desk.canary.record.totals
    assert (totals.mismatches, totals.failures) == (0, 0)
    assert totals.compared == totals.equal
    assert desk.canary.trouble == ""


def test_ctrl_c_ends_it_and_leaves_the_answer_and_a_model_that_goes_on(folder):
    plain = watched(folder, share=0.0)
    answer = plain.model.generate(TEXT, **GREEDY)
    desk = watched(folder, faults={len(plain.engine.calls) + 5: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        desk.model.generate(TEXT, **GREEDY)
    assert desk.model.last_result is not None
    assert desk.model.last_result.tokens == answer.tokens
    assert desk.model.last_result.finish_reason == "length"
    assert desk.canary.record.totals.compared == 0
    heard: list[str] = []
    other = threading.Thread(
        target=lambda: heard.append(desk.model.generate(TEXT, **GREEDY).text), daemon=True
    )
    other.start()
    other.join(30)
    assert heard == [answer.text]
    assert desk.canary.record.totals.equal == 1


def test_a_turn_that_nobody_holds_any_more_is_over():
    turns, turn = Turns(), Turn()
    turns.begin(turn)
    del turn
    gc.collect()
    other = threading.Thread(target=turns.make_way, daemon=True)
    other.start()
    other.join(5)
    assert not other.is_alive()


def test_whoever_makes_way_waits_until_the_turn_is_over():
    turns, turn = Turns(), Turn()
    turns.begin(turn)
    turns.make_way()  # of one's own there is nothing to wait for
    assert not turn.wanted
    other = threading.Thread(target=turns.make_way, daemon=True)
    other.start()
    until(lambda: turn.wanted)
    assert other.is_alive()
    turn.over.set()
    other.join(5)
    assert not other.is_alive()


def test_there_is_one_turn_at_a_time():
    turns, first, second = Turns(), Turn(), Turn()
    turns.begin(first)
    with pytest.raises(BusyError):
        turns.begin(second)
    first.over.set()
    turns.begin(second)
