"""Target and draft on engines of their own: what is opened, kept apart, and refused.

Engines on a GPU are fake ones that describe themselves as the real ones do.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import specedge
from commands import alphabet, runner
from probe_desk import cheap, prompts
from probe_desk import install as in_known_time
from specedge import opening
from specedge.bundle import Bundle
from specedge.config import Config
from specedge.contract import GraphSpec
from specedge.desk import Desk
from specedge.engines import cuda, matching, options, registry
from specedge.engines.fake import FakeEngine
from specedge.errors import EngineError, MemoryBudgetError, OptionError
from specedge.memory import DEVICE_RESERVE, RESERVE, Room, activation_bytes, fit
from specedge.opening import Opener
from specedge.probe.probing import probe
from specedge.probe.record import NO_RECORD
from specedge.versions import versions
from tiny import edit_manifest, write_bundle
from tiny_exports import TinyExports

pytestmark = pytest.mark.usefixtures("private_cache")

DESCRIBED = {
    "cpu": "onnxruntime 1.32.0, cpu, 2 threads",
    "cuda": "onnxruntime 1.31.1, cuda, 2 threads",
    "ort-tensorrt": "onnxruntime 1.31.1, tensorrt, 2 threads",
    "tensorrt": "tensorrt 11.4.0, NVIDIA H200 (SM90), T 512",
    "tensorrt-rtx": "tensorrt-rtx 1.7.1, NVIDIA L4 (SM89), T 512",
    "fake": "fake",
}


@pytest.fixture
def opened(monkeypatch) -> list[tuple[str, str, dict[str, object]]]:
    """Every engine is a fake one; says (role, engine, how it was asked for)."""
    found: list[tuple[str, str, dict[str, object]]] = []
    create = registry.create

    def faking(name, path, spec, **given):
        found.append((spec.role, name, given))
        engine = create("fake", path, spec, context=given["context"])
        kind = type("Described", (FakeEngine,), {"description": DESCRIBED[name]})
        engine.__class__ = kind
        return engine

    monkeypatch.setattr(registry, "create", faking)
    return found


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A target and a draft that every engine runs."""
    return standard(write_bundle(tmp_path / "pair", draft=True, max_verify=4, rule=alphabet()))


def standard(folder: Path, **changes: object) -> Path:
    said = json.loads((folder / "specedge.json").read_text())
    graph = {"lowering": "standard", "kv_dtype": "float16"}
    for role in ("target", "draft"):
        if said[role] is not None:
            edit_manifest(folder, **{role: said[role] | graph})
    edit_manifest(folder, **changes)
    return folder


def opener(folder: Path, engine: str = "cpu", **given) -> Opener:
    settings = {"threads": None, "context": 64, "exact": True} | given
    return Opener(Bundle.open(folder, verify=False), engine, **settings)


# Which engine runs what


def graph(folder: Path, lowering: str, kv_dtype: str) -> GraphSpec:
    spec = Bundle.open(folder).manifest.target
    return spec.model_copy(update={"lowering": lowering, "kv_dtype": kv_dtype})


RUNS = {  # by hand, from the table in engines/matching.py
    "ort float32": {"cpu", "fake"},
    "ort float16": {"cpu", "cuda", "fake"},
    "standard float32": {"cpu", "cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx", "fake"},
    "standard float16": {"cpu", "cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx", "fake"},
    "standard bfloat16": {"cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx", "fake"},
    "concat float32": {"cpu", "fake"},
}


@pytest.mark.parametrize(("name", "kind"), list(product(DESCRIBED, RUNS)))
def test_an_engine_takes_what_it_runs_and_says_how_to_export_for_it(pair, name, kind):
    spec = graph(pair, *kind.split())
    if name in RUNS[kind]:
        matching.check(name, spec)
        return
    with pytest.raises(EngineError, match=f"^engine {name}: the target .*export with") as error:
        matching.check(name, spec)
    assert "\n" not in str(error.value)
    with pytest.raises(EngineError, match=f"^engine {name}: "):  # before any library is looked for
        registry.create(name, pair, spec)


@pytest.mark.parametrize(
    ("lowering", "precision", "activations"),
    [
        ("standard", "bf16", "auto"),
        ("standard", "int4", "bf16"),
        ("ort", "fp32", "auto"),
        ("ort", "int4", "auto"),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_what_a_refusal_says_to_set_can_be_set_and_is_then_run(
    pair, role, lowering, precision, activations
):
    said = {
        "name": "tiny",
        "target": {"source": "x", "precision": "int4" if role == "draft" else precision},
        "draft": {"source": "x", "precision": precision},
        "export": {"lowering": lowering, "activations": activations},
    }

    def built() -> GraphSpec:
        config = Config.model_validate(said)
        model = config.draft if role == "draft" else config.target
        spec = graph(pair, lowering, config.activations(model))
        return spec.model_copy(update={"role": role, "precision": model.precision})

    name = "cpu" if lowering == "standard" else "cuda"
    with pytest.raises(EngineError, match=f"the {role} ") as error:
        matching.check(name, built())
    key, value = re.search(r"--set (\S+)=(\w+)", str(error.value)).groups()
    section, option = key.split(".")
    said[section][option] = value
    matching.check(name, built())


def test_every_engine_is_told_by_its_description_and_by_no_other():
    for name, other in product(DESCRIBED, repeat=2):
        assert matching.runs_as(name, DESCRIBED[other]) == (name == other)
    assert matching.runs_as("auto", DESCRIBED["cpu"])


# What is opened


@pytest.mark.parametrize(
    ("engine", "draft_engine", "names", "spins_down"),
    [
        ("auto", None, ("cpu", "cpu"), True),
        ("cpu", "auto", ("cpu", "cpu"), True),
        ("cuda", None, ("cuda", "cuda"), False),
        ("cuda", "cpu", ("cuda", "cpu"), False),
        ("cpu", "cuda", ("cpu", "cuda"), False),
        ("tensorrt", None, ("tensorrt", "tensorrt"), False),
    ],
)
def test_each_model_opens_on_its_engine_and_only_neighbours_take_turns(
    pair, opened, engine, draft_engine, names, spins_down
):
    made = opener(pair, engine, draft_engine=draft_engine)
    made.target(takes_turns=True)
    made.draft()
    assert [(role, name) for role, name, _ in opened] == list(
        zip(("target", "draft"), names, strict=True)
    )
    assert [given["takes_turns"] for *_, given in opened] == [spins_down, spins_down]
    made.target(takes_turns=False)
    assert opened[-1][2]["takes_turns"] is False


def test_options_of_an_engines_section_reach_that_engine_alone(pair, opened):
    said = {"cuda": {"use_tf32": False}, "cpu": {"session.set_denormal_as_zero": 1}}
    edit_manifest(pair, engines=said)
    made = opener(pair, "cuda", draft_engine="auto")
    made.target(takes_turns=True)
    made.draft()
    assert [given["options"] for *_, given in opened] == [said["cuda"], said["cpu"]]
    opener(pair, "tensorrt").target(takes_turns=False)
    assert opened[-1][2]["options"] is None
    edit_manifest(pair, engines={"cuda": {"device_id": "first"}})
    with pytest.raises(EngineError, match="device_id = 'first'"):
        opener(pair, "cuda")
    opener(pair, "cpu")


def test_threads_go_to_engines_that_have_any_and_are_refused_where_none_has(pair, opened):
    made = opener(pair, "tensorrt", draft_engine="cpu", threads=2)
    made.target(takes_turns=True)
    made.draft()
    assert [given["threads"] for *_, given in opened] == [None, 2]
    with pytest.raises(OptionError, match=r"^threads: tensorrt computes on the GPU and has none"):
        opener(pair, "tensorrt", threads=2)


def test_an_engine_for_a_draft_that_is_not_there_is_refused(tiny_bundle):
    with pytest.raises(OptionError, match=r"^draft_engine: cpu is given, but the bundle has no"):
        specedge.load(tiny_bundle, engine="fake", draft_engine="cpu")


@pytest.mark.parametrize("where", ["engine", "draft_engine"])
def test_a_misspelt_or_unfit_engine_is_refused_before_anything_is_opened(pair, opened, where):
    given = {"engine": "fake", "draft_engine": "fake"}
    with pytest.raises(EngineError, match=r"no engine 'cudda'.*did you mean cuda\?"):
        specedge.load(pair, **(given | {where: "cudda"}))
    said = json.loads((pair / "specedge.json").read_text())
    for role in ("target", "draft"):
        edit_manifest(pair, **{role: said[role] | {"lowering": "ort"}})
    with pytest.raises(EngineError, match="--lowering standard"):
        specedge.load(pair, **(given | {where: "tensorrt"}))
    assert opened == []


def test_a_draft_that_the_targets_engine_does_not_run_is_left_out_with_its_reason(pair):
    said = json.loads((pair / "specedge.json").read_text())
    edit_manifest(pair, draft=said["draft"] | {"lowering": "ort"})
    found = opener(pair, "tensorrt").draft()
    assert isinstance(found, str)
    assert found.startswith("engine tensorrt: the draft is made of ONNX Runtime's fused operators")


def test_a_fake_draft_beside_a_real_target_changes_nothing_of_the_text(tiny_exports: TinyExports):
    target = tiny_exports.checkpoint("llama")
    bundle = tiny_exports.bundle(target, target, context=96, max_verify=8)
    ask = {"prompt": "abc", "max_tokens": 24, "ignore_eos": True}
    with specedge.load(bundle, speculation="off") as model:
        plain = model.generate(**ask)
        assert model.draft_engine is None
    given = {"speculation": "on", "draft_length": 3, "proposers": ["draft"]}
    with specedge.load(bundle, draft_engine="fake", **given) as model:
        mixed = model.generate(**ask)
        assert (model.engine.split(" ")[0], model.draft_engine) == ("onnxruntime", "fake")
    assert mixed.tokens == plain.tokens
    with specedge.load(bundle, **given) as model:
        own = model.generate(**ask)
        assert model.draft_engine == model.engine
    assert own.tokens == plain.tokens
    assert own.metrics.rounds < mixed.metrics.rounds


# What is known of a pair


@pytest.fixture
def known_time(monkeypatch):
    desk = in_known_time(monkeypatch)
    desk.cost = cheap
    return desk


def test_a_record_of_another_pairing_is_not_used(pair, tmp_path, opened, known_time):
    two = prompts(tmp_path / "two.jsonl", {"prompt": "hello", "class": "greeting"})
    given = {"prompts": two, "clock": known_time.clock, "engine": "cuda"}
    first = probe(pair, **given)
    assert (first.measured, first.reason) == (True, NO_RECORD)
    assert not probe(pair, **given).measured
    assert not probe(pair, **given, draft_engine="cuda").measured
    other = probe(pair, **given, draft_engine="cpu")
    assert (other.measured, other.reason) == (True, "draft engine cuda -> cpu")
    assert other.path != first.path
    assert not probe(pair, **given, draft_engine="cpu").measured
    assert (
        first.record.fingerprint["draft_engine"],
        other.record.fingerprint["draft_engine"],
    ) == ("cuda", "cpu")
    with specedge.load(pair, engine="cuda", draft_engine="tensorrt") as model:
        assert any("draft engine" in note and "-> tensorrt" in note for note in model.notes)
    with specedge.load(pair, engine="cuda", draft_engine="auto") as model:
        assert any(note.startswith("the probe says") for note in model.notes)


def test_a_run_without_the_draft_names_no_engine_for_it(pair):
    target = FakeEngine(Bundle.open(pair).manifest.target)
    made = opener(pair, "fake", draft_engine="cpu")
    assert made.fingerprint(target, with_draft=True)["draft_engine"] == "cpu"
    assert made.fingerprint(target, with_draft=False)["draft_engine"] is None
    assert opener(pair, "auto").fingerprint(target, with_draft=True)["draft_engine"] == "cpu"


def test_results_name_the_drafts_engine_where_it_is_another(pair, opened):
    with Desk(pair, engine="cuda", draft_engine="cpu", verify=False) as desk:
        assert desk.fingerprint["draft_engine"] == "cpu"
        said = versions(desk.model.engine, (), draft=desk.model.draft_engine)
    assert (said["engine"], said["draft engine"]) == (DESCRIBED["cuda"], DESCRIBED["cpu"])
    with Desk(pair, engine="cuda", verify=False) as desk:
        said = versions(desk.model.engine, (), draft=desk.model.draft_engine)
    assert "draft engine" not in said


@pytest.mark.parametrize(
    ("runs_on", "fault"),
    [
        (("cuda", "cpu"), ""),
        (("cpu", "cpu"), "target: runs on onnxruntime 1.32.0, cpu, 2 threads, asked for cuda"),
        (("cuda", "cuda"), "draft: runs on onnxruntime 1.31.1, cuda, 2 threads, asked for cpu"),
    ],
)
def test_verify_sees_a_pair_that_fell_back(pair, opened, monkeypatch, runs_on, fault):
    from specedge.gates import compatibility

    with Desk(pair, engine="cuda", draft_engine="cpu", verify=False) as desk:
        for engine, name in zip((desk.model.target, desk.draft_engine), runs_on, strict=True):
            monkeypatch.setattr(type(engine), "description", DESCRIBED[name])
        found = compatibility.engine(desk)
    assert [each.removesuffix("; run `specedge doctor`") for each in found.faults] == (
        [fault] if fault else []
    )


# Memory


@pytest.mark.parametrize(
    ("engine", "draft_engine", "room"),
    [
        ("cpu", None, Room(1 << 30)),
        ("cuda", None, Room((8 << 30) - DEVICE_RESERVE, "on the GPU")),
        ("tensorrt", "cuda", Room((8 << 30) - DEVICE_RESERVE, "on the GPU")),
        ("cuda", "cpu", Room((8 << 30) - DEVICE_RESERVE, "on the GPU", True, 1 << 30)),
        ("cpu", "cuda", Room(1 << 30, "", True, (8 << 30) - DEVICE_RESERVE, "on the GPU")),
    ],
)
def test_room_is_looked_for_where_each_model_computes(
    pair, monkeypatch, engine, draft_engine, room
):
    monkeypatch.setattr(opening, "available_bytes", lambda: 1 << 30)
    monkeypatch.setattr(cuda, "free_bytes", lambda device: 8 << 30)
    assert opener(pair, engine, draft_engine=draft_engine).room == room
    monkeypatch.setattr(cuda, "free_bytes", lambda device: None)
    if engine == "cuda":
        assert opener(pair, engine).room == Room(None, "on the GPU")
    monkeypatch.setattr(cuda, "free_bytes", lambda device: 5)
    if engine == "cuda":
        assert opener(pair, engine).room.available == 0


def test_two_gpus_have_room_of_their_own(pair, monkeypatch):
    monkeypatch.setattr(cuda, "free_bytes", lambda device: (device + 1) << 30)
    edit_manifest(pair, engines={"cuda": {"device_id": 1}, "tensorrt": {"device": 2}})
    first, second = ((n << 30) - DEVICE_RESERVE for n in (2, 3))
    assert opener(pair, "cuda").room == Room(first, "on GPU 1")
    both = Room(first, "on GPU 1", True, second, "on GPU 2")
    assert opener(pair, "cuda", draft_engine="tensorrt").room == both


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"cpu": {"session.set_denormal_as_zero": True}}, ""),
        ({"cuda": {"gpu_mem_limit": 7}, "tensorrt": {"device": 1, "tune_for": 3}}, ""),
        ({"cuda": {"gpu_mem_limits": 7}}, r"\[engines.cuda\] no option .*'gpu_mem_limit'"),
        ({"ort-tensorrt": {"device_id": "first"}}, "device_id = 'first': expected the number"),
        ({"cpu": {"session.set_denormal_as_zero": "1"}}, ""),
        (
            {"cpu": {"session.intra_op.allow_spinning": "off\nor on"}},
            r"allow_spinning = 'off\\nor on': expected true or false$",
        ),
        ({"cuda": {"session.disable_prepacking": 2}}, "prepacking = 2: expected true or false"),
        ({"tensorrt-rtx": {"devise": 1}}, r"\[engines.tensorrt-rtx\] has no option 'devise'"),
    ],
)
def test_sections_of_engines_are_checked_without_their_runtimes(section, fault):
    if not fault:
        options.check(section)
        return
    with pytest.raises(EngineError, match=fault):
        options.check(section)


@pytest.fixture
def large(pair):
    """Models that need some hundred megabytes each."""
    manifest = Bundle.open(pair).manifest
    big = {"weight_bytes": 300 << 20, "parameters": 300 << 20}
    return manifest.model_copy(
        update={
            "target": manifest.target.model_copy(update=big),
            "draft": manifest.draft.model_copy(update=big),
        }
    )


@pytest.mark.parametrize("spare", [-1, 0])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_draft_elsewhere_needs_room_there_and_none_beside_the_target(large, spare, on_gpu):
    draft = large.draft
    own = draft.weight_bytes + draft.kv_bytes(64) + activation_bytes(draft, 64, 1)
    room = Room(
        1 << 40,
        "on the GPU" if on_gpu else "",
        apart=True,
        draft_available=own + RESERVE + spare,
        draft_where="" if on_gpu else "on the GPU",
    )
    asked = {"budget": None, "wants_draft": True, "lookups": True}
    found = fit(large, 64, room=room, **asked)
    assert found.keeps_draft == (spare == 0)
    if spare:
        assert "by itself it needs" in found.note
        assert ("are available on the GPU;" in found.note) != on_gpu
    alone = fit(large, 64, room=Room(1 << 40), **(asked | {"wants_draft": False})).plan.total
    assert fit(large, 64, room=replace(room, available=alone + RESERVE), **asked).note == found.note
    tight = fit(large, 64, room=replace(room, available=alone + RESERVE - 1), **asked)
    assert tight.keeps_draft == (spare == 0)
    assert "memory may not suffice: a run needs" in tight.note
    assert ("available on the GPU; a context" in tight.note) == on_gpu


def test_a_draft_elsewhere_that_must_draft_and_does_not_fit_is_an_error(large):
    room = Room(1 << 40, "on the GPU", apart=True, draft_available=1)
    with pytest.raises(MemoryBudgetError, match=r'^speculation "on": '):
        fit(large, 64, budget=None, room=room, wants_draft=True, lookups=False, insists=True)


def test_a_budget_is_one_for_all_devices(large):
    asked = {"wants_draft": True, "lookups": True}
    room = Room(1, "on the GPU", apart=True, draft_available=1)
    both = fit(large, 64, budget=1 << 40, room=room, **asked)
    assert (both.keeps_draft, both.note) == (True, "")
    short = fit(large, 64, budget=both.plan.total - 1, room=room, **asked)
    assert not short.keeps_draft
    assert "the limit is" in short.note


# The command line


def test_commands_open_the_draft_where_they_are_told(pair, opened, capfd, monkeypatch):
    said = runner(capfd, monkeypatch)
    two = ("--engine", "cuda", "--draft-engine", "cpu")
    code, _, err = said("run", str(pair), "hello", *two, "--speculation", "on", "--max-tokens", "4")
    assert code == 0, err
    assert [(role, name) for role, name, _ in opened] == [("target", "cuda"), ("draft", "cpu")]
    code, _, err = said("run", str(pair), "hello", "--engine", "cuda", "--draft-engine", "cpus")
    assert (code, "did you mean cpu?" in err) == (1, True)
    for command in ("probe", "verify", "bench", "chat"):
        code, out, _ = said(command, "-h")
        assert (code, "--draft-engine NAME" in out) == (0, True)
