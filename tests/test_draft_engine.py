"""An engine that is named for the draft: it runs, or nothing does; and what a missing GPU hides."""

from __future__ import annotations

from pathlib import Path

import pytest

import specedge
from commands import alphabet, runner
from specedge import opening
from specedge.bundle import Bundle
from specedge.desk import Desk
from specedge.engines import cuda, matching, registry
from specedge.errors import EngineError, MemoryBudgetError, OptionError, PlanError
from specedge.probe.probing import probe
from tiny import edit_manifest, write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")

NO_GPU = "the driver is missing; install it"
H200 = cuda.Device("NVIDIA H200", (9, 0), 143 << 30, (13, 0))


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    folder = write_bundle(tmp_path / "pair", draft=True, max_verify=4, rule=alphabet())
    manifest = Bundle.open(folder).manifest
    graph = {"lowering": "standard", "kv_dtype": "float16"}
    edit_manifest(
        folder,
        target=manifest.target.model_dump() | graph,
        draft=manifest.draft.model_dump() | graph,
    )
    return folder


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: NO_GPU)


@pytest.fixture
def broken(monkeypatch):
    """The draft's engine fails as told; the target's is a fake one."""
    create = registry.create

    def breaks(error: Exception) -> None:
        def creating(name, path, spec, **given):
            if spec.role == "draft":
                raise error
            return create(name, path, spec, **given)

        monkeypatch.setattr(opening.registry, "create", creating)

    return breaks


LOST = (
    r"^the draft model cannot be loaded: engine {}: no NVIDIA GPU can be used: the driver is "
    r"missing; install it, or use --draft-engine cpu$"
)


@pytest.mark.parametrize("name", matching.ON_GPU)
@pytest.mark.parametrize("speculation", ["auto", "on"])
def test_a_named_engine_that_does_not_open_is_an_error(pair, name, speculation):
    with pytest.raises(EngineError, match=LOST.format(name)):
        specedge.load(pair, engine="fake", draft_engine=name, speculation=speculation)


def test_every_command_refuses_it_in_the_same_words(pair, capfd, monkeypatch):
    said = runner(capfd, monkeypatch)
    given = (str(pair), "--engine", "fake", "--draft-engine", "tensorrt-rtx")
    for command in (("run", "hello", "--no-stats"), ("probe",), ("verify",), ("bench",)):
        name, *rest = command
        code, out, err = said(name, *given[:1], *rest, *given[1:])
        assert (code, out) == (1, ""), command
        assert "engine tensorrt-rtx: no NVIDIA GPU" in err.splitlines()[-1], command
        assert err.rstrip().endswith("or use --draft-engine cpu"), command
    with pytest.raises(EngineError, match=LOST.format("cuda")):
        specedge.load(pair, engine="fake", draft_engine="cuda", canary=1.0)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (EngineError("draft: it fails"), EngineError, "it fails; choose another --draft-engine"),
        (PlanError("no plan; build it"), PlanError, "build it; choose another --draft-engine"),
        (EngineError("no room, or --engine cpu"), EngineError, "no room, or --draft-engine cpu"),
    ],
)
def test_the_reason_and_a_way_out_are_told(pair, broken, error, kind, said):
    broken(error)
    with pytest.raises(kind) as found:
        specedge.load(pair, engine="fake", draft_engine="fake")
    assert str(found.value).endswith(said)


def test_what_nobody_named_is_left_out_with_words_for_the_draft(pair, broken):
    broken(EngineError("engine fake: no room, or use --engine cpu"))
    model = specedge.load(pair, engine="fake")
    (note,) = (note for note in model.notes if "left out" in note)
    assert note.endswith("engine fake: no room, or use --draft-engine cpu")
    assert any(
        "--draft-engine cpu" in note for note in probe(pair, engine="fake", budget_s=1).notes
    )


def test_want_of_memory_may_still_leave_a_named_draft_out(pair, broken):
    broken(MemoryError())
    model = specedge.load(pair, engine="fake", draft_engine="fake")
    assert "the draft model was left out: MemoryError" in model.notes


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"speculation": "off"}, 'speculation is "off"'),
        ({"draft_length": 0}, "the draft length is 0"),
        ({"proposers": ["ngram"]}, "draft is not among the proposers (ngram)"),
        ({"proposers": []}, "draft is not among the proposers (none)"),
    ],
)
def test_an_engine_for_a_draft_that_does_not_draft_is_refused(pair, asked, why):
    with pytest.raises(OptionError) as error:
        specedge.load(pair, engine="fake", draft_engine="fake", **asked)
    assert str(error.value).startswith(f"draft_engine: fake is given, but {why}; leave it out, or")
    specedge.load(pair, engine="fake", **asked)


def test_a_desk_and_a_probe_refuse_it_too(pair):
    refused = {"match": r"^draft_engine: fake is given, but draft is not among the proposers"}
    with pytest.raises(OptionError, **refused):
        Desk(pair, engine="fake", draft_engine="fake", proposers=["ngram"])
    said = Bundle.open(pair).manifest.speculation.model_dump(mode="json")
    edit_manifest(pair, speculation=said | {"proposers": ["ngram"]})
    with pytest.raises(OptionError, **refused):
        probe(pair, engine="fake", draft_engine="fake")


def test_a_misspelt_or_unfit_engine_of_the_draft_is_called_that(pair):
    with pytest.raises(EngineError, match=r"^draft_engine: no engine 'gpu'.*did you mean cuda\?"):
        specedge.load(pair, engine="fake", draft_engine="gpu")
    said = Bundle.open(pair).manifest.draft.model_dump() | {"lowering": "concat"}
    edit_manifest(pair, draft=said)
    with pytest.raises(EngineError, match=r"use --draft-engine cpu"):
        specedge.load(pair, engine="fake", draft_engine="cuda")


# Hints of who has to have the draft


def test_a_desk_does_not_point_at_what_its_commands_lack(pair, broken):
    broken(EngineError("engine fake: it fails"))
    with pytest.raises(EngineError) as error:
        Desk(pair, engine="fake")
    assert str(error.value).endswith("it fails; choose its engine with --draft-engine")
    with pytest.raises(EngineError) as error:
        Desk(pair, engine="fake", proposers=["draft"])
    assert str(error.value).endswith("--draft-engine, or leave draft out of the proposers")
    with pytest.raises(EngineError, match=r'use speculation "auto" to go on without it$'):
        specedge.load(pair, engine="fake", speculation="on")


def test_a_desk_with_too_little_memory_does_not_either(pair):
    alone = {"engine": "fake", "proposers": ["draft"]}
    spec = Bundle.open(pair).manifest.draft.model_dump()
    edit_manifest(pair, draft=spec | {"weight_bytes": 1 << 40, "parameters": 1 << 40})
    with pytest.raises(MemoryBudgetError, match=r'^speculation "on": .*; add "ngram"'):
        Desk(pair, memory="1GiB", verify=False, **alone)
    with pytest.raises(MemoryBudgetError, match='; use "auto", add "ngram"'):
        specedge.load(pair, memory="1GiB", verify=False, speculation="on", **alone)


# A machine without a GPU


@pytest.mark.parametrize("name", matching.ON_GPU)
def test_a_missing_gpu_is_told_before_what_could_be_installed(pair, monkeypatch, name):
    missing = EngineError("engine: onnxruntime-gpu is not installed; install 256 MB")

    def lacks(*given, **more):
        raise missing

    monkeypatch.setattr(registry, "check_onnxruntime", lacks)
    monkeypatch.setattr("specedge.engines.trt.library.load", lacks)
    spec = Bundle.open(pair).manifest.target
    with pytest.raises(EngineError, match=f"^engine {name}: no NVIDIA GPU can be used: the driver"):
        registry.create(name, pair, spec)
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: H200)
    with pytest.raises(EngineError) as error:
        registry.create(name, pair, spec)
    assert error.value is missing
