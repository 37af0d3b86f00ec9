"""A whole benchmark: what is kept of it, interrupted or not."""

from __future__ import annotations

import pytest

from commands import alphabet
from specedge.engines.fake import FakeEngine
from specedge.loadtest.benching import bench
from specedge.loadtest.keeping import read
from specedge.loadtest.planning import Settings
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")


def interrupting(monkeypatch, call):
    """Ctrl-C in this call of an engine, from 0."""
    forward, calls = FakeEngine.forward, iter(range(10**6))

    def stopping(self, *args):
        if next(calls) == call:
            raise KeyboardInterrupt
        return forward(self, *args)

    monkeypatch.setattr(FakeEngine, "forward", stopping)


QUICK = Settings(classes=("chat",), per_class=2, max_tokens=4, repeats=1, warmup=0)


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "b", draft=True, max_verify=4, context=2048, rule=alphabet())


def test_an_interrupted_benchmark_keeps_what_it_has(monkeypatch, bundle, tmp_path):
    interrupting(monkeypatch, 9)
    done = bench(bundle, QUICK, output=tmp_path / "kept", engine="fake")
    found = read(tmp_path / "kept")
    assert not done.kept.header.complete
    assert found == done.kept
    assert 0 < len(found.requests) < 8
    assert all(each.failure is None for each in found.requests)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "kept"]


def test_a_benchmark_interrupted_before_anything_was_measured_leaves_nothing(
    monkeypatch, bundle, tmp_path
):
    interrupting(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        bench(bundle, QUICK, output=tmp_path / "kept", engine="fake")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


def test_the_header_says_what_was_run_on_what(bundle, tmp_path):
    settings = Settings(
        **{"classes": ("chat", "summarising"), "per_class": 1, "max_tokens": 4, "ks": (1, 3)},
        **{"concurrency": (1, 2), "rates": (500.0,), "repeats": 1, "warmup": 1, "seed": 7},
    )
    header = bench(bundle, settings, command="specedge bench b", engine="fake").kept.header
    assert header.bundle == "tiny"
    assert header.command == "specedge bench b"
    assert header.ways == ["plain", "auto", "ngram K=1", "ngram K=3", "draft K=1", "draft K=3"]
    assert [load.name for load in header.loads] == ["1 client", "2 clients", "500 requests/s"]
    assert (header.repeats, header.warmup, header.max_tokens) == (1, 1, 4)
    assert header.options == {"temperature": 0.0, "acceptance": "auto", "seed": 7}
    assert header.fingerprint["engine"] == "fake"
    assert {"specedge", "python", "numpy", "engine"} <= set(header.versions)
    assert header.prompts == "built in"
    assert header.complete
    assert len(header.bundle_hash) == 64


def test_two_proposers_can_be_one_way(bundle):
    settings = Settings(proposers=("ngram+draft",), ks=(2,))
    assert settings.opened == ["ngram", "draft"]
    done = bench(
        bundle,
        Settings(
            **{"proposers": ("ngram+draft",), "ks": (2,), "classes": ("chat",), "per_class": 1},
            **{"max_tokens": 8, "repeats": 1, "warmup": 0},
        ),
        engine="fake",
    )
    assert done.kept.header.ways == ["plain", "auto", "ngram+draft K=2"]
    assert done.folder is None


@pytest.mark.model
def test_a_real_pair_under_load_gives_equal_outputs_and_times_that_hang_together(selfdraft):
    settings = Settings(
        **{"classes": ("chat", "code editing"), "per_class": 1, "max_tokens": 8, "ks": (3,)},
        **{"concurrency": (2,), "repeats": 1, "warmup": 0},
    )
    kept = bench(selfdraft, settings).kept
    assert kept.header.ways == ["plain", "auto", "ngram K=3", "draft K=3"]
    assert not [note for note in kept.header.notes if "differ" in note]
    assert len(kept.requests) == 8
    for each in kept.requests:
        assert each.failure is None
        assert each.first_s is not None
        assert each.arrived_s <= each.began_s < each.first_s < each.ended_s
        assert each.first_s - each.began_s >= each.prefill_ms / 1e3
        spent = each.propose_ms + each.verify_ms + each.accept_ms + each.other_ms
        assert (each.ended_s - each.first_s) * 1e3 == pytest.approx(spent, rel=0.1, abs=5)
    waiting = [each.queued_ms for each in kept.requests if each.number == 1]
    assert min(waiting) > 10  # for the whole first request
