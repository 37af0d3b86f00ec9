"""Rejection by the `accept` graph on ONNX Runtime's CPU; numpy's `rejection` is its oracle.

Power of the distribution test: n = 20,000 rounds, 8 ids (7 degrees of freedom), alarm 1e-4 for each
of 3 places, limit 29.9. A bias of total variation 0.03 moves Pearson's statistic by at least
4 n 0.03^2 = 72 at the first place, and is then caught with probability 0.99; at the last, which
half of the rounds reach, one of 0.04. The planted one is of 0.06 and gets fewer rounds.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from functools import cache

import numpy as np
import onnxruntime as ort
import pytest

import chi_square
from specedge.acceptance import RoundDraws, Verdict, device, rejection
from specedge.acceptance.device import Question
from specedge.controller import Controller
from specedge.engines.base import Scored
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.engines.ort import accepting
from specedge.engines.ort.accepting import Accepting
from specedge.errors import EngineError, ShapeError
from specedge.export import acceptance_graph
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.proposers import DraftModelProposer, NgramProposer
from specedge.randomness import Randomness
from specedge.sampling.law import Law
from specedge.sampling.params import SamplingParams
from specedge.sampling.sampler import make_sampler
from specedge.sequence import Sequence
from specedge.speculator import Speculator
from tiny_exports import read_manifest

EDGE = 1e-6  # how far from its place a draw may be where float32 decides


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """V → its session."""
    root = tmp_path_factory.mktemp("accept")

    @cache
    def of(vocab: int) -> Accepting:
        folder = root / str(vocab)
        acceptance_graph.write(folder, vocab)
        found = Accepting.of(folder)
        assert found is not None
        return found

    return of


class Fixed:
    """Draws that are given; for `RoundDraws`."""

    def __init__(self, accept, then):
        self.accept = lambda index: accept[index]
        self.residual = self.bonus = lambda index: then


def ask(graph, logits, question) -> Verdict:
    logits = np.ascontiguousarray(logits, np.float32)
    return graph.decider(ort.OrtValue.ortvalue_from_numpy(logits))(question)


def laws(logits, scale):
    return tuple(Law(None, row, scale) for row in logits)


def a_round(rng, vocab, k, *, lookup):
    """Logits [K + 1, V] and a question about a draft that agrees now and then."""
    scale = float(1 / rng.choice([0.3, 0.8, 1.0, 1.5]))
    logits = (3 * rng.standard_normal((k + 1, vocab))).astype(np.float32)
    near = (logits[:k] + rng.standard_normal((k, vocab)) / 2).astype(np.float32)
    q = laws(near, scale)
    draft = np.array([law.sample(rng.random()) for law in q], np.int64)
    draws = RoundDraws(Randomness(int(rng.integers(1 << 40))), 7)
    return logits, Question(scale, draft, None if lookup else q, draws)


def by_numpy(logits, question):
    q = question.q or tuple(map(Law.certain, question.draft.tolist()))
    return rejection(question.draft, laws(logits, question.scale), q, question.draws)


def softmax(logits, scale):
    weights = np.exp((logits.astype(np.float64) - logits.max(-1, keepdims=True)) * scale)
    return weights / weights.sum(-1, keepdims=True)


def is_right(verdict, logits, question) -> bool:
    """By float64 and the definition; draws within EDGE of their limits may go either way."""
    p, draws, k = softmax(logits, question.scale), question.draws, len(question.draft)
    q = np.zeros((k + 1, p.shape[1]))
    for row, token in enumerate(question.draft.tolist()):
        if question.q is None:
            q[row, token] = 1
        else:
            q[row] = softmax(question.q[row].logits, question.scale)
    n = verdict.n_accepted
    for row, token in enumerate(question.draft[: n + 1].tolist()):
        height = p[row, token] / q[row, token]
        if draws.accept(row) > height + EDGE if row < n else draws.accept(row) < height - EDGE:
            return False
    left = np.maximum(p[n] - q[n], 0)
    ends = np.cumsum(left) / left.sum()
    begin = ends[verdict.next_token - 1] if verdict.next_token else 0.0
    draw = draws.bonus(k) if n == k else draws.residual(n)
    return bool(begin - EDGE <= draw <= ends[verdict.next_token] + EDGE)


# --- the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab", "rounds"), [(5, 3000), (256, 1500), (5000, 300)])
@pytest.mark.parametrize("lookup", [True, False])
def test_verdicts_are_those_of_numpy_and_of_the_definition(graphs, vocab, rounds, lookup):
    rng = np.random.default_rng(vocab)
    graph, other, lengths = graphs(vocab), 0, set()
    for _ in range(rounds):
        logits, question = a_round(rng, vocab, int(rng.integers(0, 6)), lookup=lookup)
        verdict = ask(graph, logits, question)
        assert is_right(verdict, logits, question)
        other += verdict != by_numpy(logits, question)
        lengths.add(verdict.n_accepted)
    assert other <= rounds // 1000  # a draw within 1e-6 of an edge: one in 100,000 rounds
    assert lengths >= {0, 1, 2, 3}


def planted(question: Question) -> Question:
    """The replacement is drawn with the draw that refused: a classic mistake."""
    draws, k = question.draws, len(question.draft)
    wrong = Fixed([draws.accept(i) for i in range(k)], 0.0)
    wrong.residual = draws.accept
    wrong.bonus = draws.bonus
    return dataclasses.replace(question, draws=wrong)


@pytest.mark.parametrize(("bias", "rounds"), [(None, 20_000), (planted, 4000)])
def test_committed_tokens_follow_the_targets_law(graphs, bias, rounds):
    rng = np.random.default_rng(5)
    vocab, k, scale = 8, 2, 1.25
    logits = rng.standard_normal((k + 1, vocab)).astype(np.float32)
    q = laws((logits[:k] + rng.standard_normal((k, vocab))).astype(np.float32), scale)
    said: list[list[int]] = [[] for _ in range(k + 1)]
    decide = graphs(vocab).decider(ort.OrtValue.ortvalue_from_numpy(logits))
    for draws in (RoundDraws(Randomness(3), place) for place in range(rounds)):
        draft = np.array([law.sample(rng.random()) for law in q], np.int64)
        question = Question(scale, draft, q, draws)
        n, token = decide(question if bias is None else bias(question))
        for place, committed in enumerate([*draft[:n].tolist(), token]):
            said[place].append(committed)
    p = softmax(logits, scale)
    found = [chi_square.p_value(np.array(said[i]), p[i]) for i in range(k + 1)]
    if bias is None:
        assert min(found) > 1e-4
    else:
        assert found[0] < 1e-4


def test_a_flat_law_of_the_largest_vocabulary_adds_up_exactly(graphs):
    vocab = 1 << 18
    logits = np.zeros((1, vocab), np.float32)
    for draw in (2**-53, 0.25, 0.7071, 1 - 2**-53):
        question = Question(1.0, np.array([], np.int64), None, Fixed([], draw))
        assert ask(graphs(vocab), logits, question) == (0, int(draw * vocab))


def test_a_draw_counts_to_its_last_bits(graphs):
    logits = np.zeros((1, 3), np.float32)
    for place, edge in enumerate((1 / 3, 2 / 3)):
        for draw, token in ((edge - 2**-36, place), (edge + 2**-36, place + 1)):
            question = Question(1.0, np.array([], np.int64), None, Fixed([], draw))
            assert ask(graphs(3), logits, question).next_token == token


@pytest.mark.parametrize("draw", [2**-53, 1 - 2**-53])
def test_an_id_without_weight_is_never_drawn(graphs, draw):
    logits = np.full((1, 700), -np.inf, np.float32)
    logits[0, [300, 400]] = 1.0, 2.0
    question = Question(1.0, np.array([], np.int64), None, Fixed([], draw))
    assert ask(graphs(700), logits, question).next_token == (300 if draw < 0.5 else 400)


def test_the_lowest_temperature_takes_the_likeliest(graphs):
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, 256)).astype(np.float32)
    draft = logits.argmax(1)[:2]
    question = Question(1e6, draft, None, RoundDraws(Randomness(1), 0))
    assert ask(graphs(256), logits, question) == (2, logits[2].argmax())


def test_a_token_that_the_draft_cannot_have_drawn_is_refused(graphs):
    logits = np.zeros((2, 5), np.float32)
    q = (Law(None, np.array([0, 0, 0, 0, -np.inf], np.float32)),)
    question = Question(1.0, np.array([4]), q, Fixed([2**-53], 0.5))
    assert ask(graphs(5), logits, question) == (0, 4)  # what is left of p is that token alone


def test_equal_laws_leave_nothing_and_p_is_drawn_from(graphs):
    logits = np.zeros((2, 5), np.float32)
    q = (Law(None, logits[0]),)
    question = Question(1.0, np.array([2]), q, Fixed([1.0 - 2**-53], 0.5))
    assert ask(graphs(5), logits, question).n_accepted == 1
    question.plan(plan := np.zeros((2, device.COLUMNS), np.int64))
    plan[0, 2:4] = 1 << device.WORD  # past any threshold
    inputs = {device.LOGITS: logits, device.PLAN: plan, device.LAW: question.law(np.zeros(2, "f4"))}
    inputs[device.Q] = np.zeros((2, 5), np.float32)
    device.q_rows(question, inputs[device.Q])
    session = ort.InferenceSession(acceptance_graph.build(5).SerializeToString())
    assert session.run(None, inputs)[0].tolist() == [0, 2]


def test_rows_of_padding_change_nothing(graphs):
    rng = np.random.default_rng(2)
    for _ in range(50):
        logits, question = a_round(rng, 256, 3, lookup=False)
        padded = np.concatenate([logits, 9 * rng.standard_normal((4, 256))])
        assert ask(graphs(256), padded, question) == ask(graphs(256), logits, question)


def test_padding_keeps_nothing_of_an_earlier_round(graphs):
    rng = np.random.default_rng(3)
    for k, lookup in ((4, False), (1, True), (4, False), (0, True)):
        logits, question = a_round(rng, 256, k, lookup=lookup)
        padded = np.concatenate([logits, np.zeros((5 - len(logits), 256))])
        assert ask(graphs(256), padded, question) == by_numpy(logits, question)


class Away(accepting._Input):
    """A buffer whose copy on the device is another memory, as on a GPU."""

    def __init__(self, array, where):
        super().__init__(array.copy(), where)
        self.array, self._shared = array, False


def test_everything_a_round_needs_is_sent_to_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(accepting, "_Input", Away)
    acceptance_graph.write(tmp_path, 256)
    there, rng = Accepting.of(tmp_path), np.random.default_rng(4)
    for turn in range(40):
        logits, question = a_round(rng, 256, turn % 4, lookup=bool(turn % 3))
        assert ask(there, logits, question) == by_numpy(logits, question)


def test_logits_of_another_shape_are_refused(graphs):
    question = Question(1.0, np.array([1, 2]), None, RoundDraws(Randomness(1), 0))
    for shape in ((2, 256), (3, 255)):
        with pytest.raises(ShapeError, match=r"at least \[3, 256\]"):
            ask(graphs(256), np.zeros(shape), question)


def test_a_graph_that_does_not_load_is_an_engine_error(tmp_path):
    assert Accepting.of(tmp_path) is None
    (tmp_path / "accept").mkdir()
    (tmp_path / device.MODEL).write_bytes(b"no graph")
    with pytest.raises(EngineError, match="accept graph"):
        Accepting.of(tmp_path)


# --- the seam -----------------------------------------------------------------------------------

VOCAB = 64


class OnDevice(FakeEngine):
    """An engine whose logits stay on a device; `fetched` counts how often they are read."""

    graph: Accepting
    fetched = asked = 0

    def forward(self, slot, tokens, n_cached, rows):
        scored = super().forward(slot, tokens, n_cached, rows)
        rows = scored.logits.copy()
        decide = self.graph.decider(ort.OrtValue.ortvalue_from_numpy(rows))

        def fetch():
            self.fetched += 1
            return rows

        def ask(question):
            self.asked += 1
            return decide(question)

        return Scored(scored.greedy_ids, fetch, scored.run_ms, ask)


def scores(seed):
    """Logits by the last two tokens; seeds near each other agree about half of the time."""
    table = np.random.default_rng(0).standard_normal((16, VOCAB))
    table = 2 * table + np.random.default_rng(seed).standard_normal((16, VOCAB))

    def row(tokens):
        return table[(tokens.item(-1) + 3 * tokens.item(-2)) % 16].astype(np.float32)

    return row


def run(engine_class, graph, proposer, **asked):
    spec = fake_spec(VOCAB, context=256)
    target = engine_class(spec, lambda tokens: 0, scores=scores(1))
    target.graph = graph
    if proposer == "draft":
        drafts = DraftModelProposer(FakeEngine(spec, lambda tokens: 0, scores=scores(2)))
    else:
        drafts = NgramProposer(1, 3)
    params = SamplingParams(**({"temperature": 0.5, "acceptance": "rejection"} | asked))
    seq = Sequence(np.array([1, 2, 3]), context=200, max_tokens=120, eos_ids=frozenset())
    sampler = make_sampler(params, seq, vocab=VOCAB, end_ids=(5,), seed=11)
    speculator, metrics = Speculator([drafts], Controller(4), mode="on"), Metrics()
    slot = target.new_slot()
    tokens = [
        token
        for each in decode(seq, target, slot, speculator, metrics, None, sampler)
        for token in each.tokens
    ]
    return tokens, metrics.summary(), target


@pytest.mark.parametrize("proposer", ["draft", "ngram"])
def test_a_request_with_a_temperature_alone_never_fetches_logits(graphs, proposer):
    own, summary, _ = run(FakeEngine, None, proposer)
    tokens, again, target = run(OnDevice, graphs(VOCAB), proposer)
    assert tokens == own
    assert (again.rounds, again.accepted) == (summary.rounds, summary.accepted)
    assert again.accepted > 5
    assert (target.fetched, target.asked) == (0, again.rounds + 1)


@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 9},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"acceptance": "coupled", "seed": 1},
        {"acceptance": "block"},
        {"repetition_penalty": 1.3},
        {"banned_tokens": (3,)},
        {"logit_bias": ((3, 1.0),)},
        {"min_tokens": 30},
        {"temperature": 0.0, "banned_tokens": (3,)},
    ],
    ids=str,
)
def test_anything_else_is_decided_on_the_host(graphs, asked):
    own, _, _ = run(FakeEngine, None, "draft", **asked)
    tokens, _, target = run(OnDevice, graphs(VOCAB), "draft", **asked)
    assert tokens == own
    assert target.asked == 0
    assert target.fetched > 0


# --- the file -----------------------------------------------------------------------------------


def test_the_same_graph_is_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        assert acceptance_graph.write(tmp_path / name, 300) == device.MODEL
    one, other = ((tmp_path / name / device.MODEL).read_bytes() for name in ("a", "b"))
    assert one == other
    assert len(one) < 20_000


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed"
)
@pytest.mark.parametrize(("vocab", "capability"), [(49_152, "SM89"), (151_665, "SM120")])
def test_tensorrt_parses_and_serialises_the_graph(vocab, capability):
    import tensorrt_rtx as trt

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, builder.logger)
    assert parser.parse(acceptance_graph.build(vocab).SerializeToString())
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    profile = builder.create_optimization_profile()
    for name, size in ((device.LOGITS, vocab), (device.Q, vocab), (device.PLAN, device.COLUMNS)):
        profile.set_shape(name, (1, size), (5, size), (16, size))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None


@pytest.mark.parametrize("lowering", ["ort", "standard"])
def test_a_bundle_made_for_a_gpu_has_it_and_another_has_not(tiny_exports, lowering):
    bundle = tiny_exports.bundle(tiny_exports.checkpoint("llama"), context=64, lowering=lowering)
    assert (Accepting.of(bundle) is not None) == (lowering == "standard")
    assert (device.MODEL in read_manifest(bundle).files) == (lowering == "standard")
