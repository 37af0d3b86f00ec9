"""What a load leaves out when memory is short, and how much memory there is."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from specedge.bundle import Bundle
from specedge.contract import GraphSpec, Manifest
from specedge.errors import MemoryBudgetError, OptionError
from specedge.memory import (
    CONTEXT_STEP,
    RESERVE,
    Room,
    activation_bytes,
    checked_memory,
    fit,
    format_size,
    parse_size,
    plan,
)
from specedge.system_memory import available_bytes
from tiny import write_bundle

MIB = 1 << 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Manifest:
    """A target of 1 GiB and a draft of 300 MiB, both with KV that counts."""
    folder = write_bundle(tmp_path_factory.mktemp("pair"), draft=True, context=4096)
    manifest = Bundle.open(folder).manifest
    sizes = {"layers": 8, "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64}

    def sized(graph: GraphSpec | None, weights: int) -> GraphSpec:
        assert graph is not None
        changes = {"weight_bytes": weights, "parameters": weights // 4}
        return graph.model_copy(update=sizes | changes)

    target = sized(manifest.target, 1024 * MIB)
    draft = sized(manifest.draft, 300 * MIB)
    return manifest.model_copy(update={"target": target, "draft": draft})


def needs(manifest: Manifest, context: int, *, draft: bool) -> int:
    """By hand: weights, KV, the widest call, and rows of the vocabulary for drawing."""
    target, other = manifest.target, manifest.draft
    total = target.weight_bytes + target.kv_bytes(context)
    widest = activation_bytes(target, context, target.max_verify)
    if draft:
        assert other is not None
        rows = min(context, other.context)
        total += other.kv_bytes(rows) + (other.weights != target.weights) * other.weight_bytes
        widest = max(widest, activation_bytes(other, rows, 1))
    return total + widest + 4 * 2 * target.max_verify * target.vocab


def given(available: int | None = None, **changes: object) -> dict[str, object]:
    said = {"budget": None, "room": Room(available), "wants_draft": True, "lookups": True}
    return said | changes


def test_what_a_run_needs_is_what_is_counted_by_hand(pair):
    for context, draft in product((256, 4096), (False, True)):
        made = fit(pair, context, **given(wants_draft=draft))
        assert made.plan.total == needs(pair, context, draft=draft)


@pytest.mark.parametrize("spare", [-1, 0, 1])
@pytest.mark.parametrize("kind", ["budget", "available"])
def test_the_draft_stays_exactly_where_everything_holds(pair, kind, spare):
    room = needs(pair, 1024, draft=True) + spare
    made = fit(pair, 1024, **given(**{kind: room + (RESERVE if kind == "available" else 0)}))
    assert made.keeps_draft == (spare >= 0)
    assert bool(made.note) == (spare < 0)
    assert made.plan.total == needs(pair, 1024, draft=spare >= 0)


def test_what_was_left_out_is_said_with_the_figures(pair):
    made = fit(pair, 1024, **given(available=1300 * MIB))
    both, alone = needs(pair, 1024, draft=True), needs(pair, 1024, draft=False)
    assert made.note == (
        f"the draft model was left out: with it a run needs {format_size(both)}, "
        f"{format_size(1300 * MIB - RESERVE)} are available; without it {format_size(alone)}; "
        "lookups still draft"
    )
    limited = fit(pair, 1024, **given(budget=1300 * MIB, lookups=False)).note
    assert f"{format_size(both)}, the limit is 1.3 GiB; without it" in limited
    assert limited.endswith("nothing is left to draft")


def test_a_budget_overrules_what_the_machine_has(pair):
    assert fit(pair, 1024, **given(budget=2048 * MIB, available=1)).note == ""
    assert not fit(pair, 1024, **given(budget=1300 * MIB, available=1 << 40)).keeps_draft


def test_where_nothing_is_known_everything_is_loaded(pair):
    made = fit(pair, 4096, **given())
    assert (made.keeps_draft, made.note) == (True, "")


def test_weights_in_float16_count_twice_where_the_host_computes(pair):
    half = {"precision": "fp16", "kv_dtype": "float16"}
    target, draft = (each.model_copy(update=half) for each in (pair.target, pair.draft))
    both = pair.model_copy(update={"target": target, "draft": draft})
    gpu = "on the GPU"

    def weights(**room: object) -> tuple[int, int]:
        found = fit(both, 64, **given(room=Room(None, **room)))
        assert found.plan.total - fit(both, 64, **given(room=Room(None, gpu))).plan.total == (
            found.plan.target_weights - target.weight_bytes
        ) + (found.plan.draft_weights - draft.weight_bytes)
        return found.plan.target_weights, found.plan.draft_weights

    once, twice = (tuple(n * e.weight_bytes for e in (target, draft)) for n in (1, 2))
    assert weights() == twice
    assert weights(where=gpu) == once
    assert weights(where=gpu, apart=True) == (once[0], twice[1])
    assert weights(apart=True, draft_where=gpu) == (twice[0], once[1])
    needed = fit(both, 64, **given(room=Room(None, gpu), wants_draft=False)).plan.total
    with pytest.raises(MemoryBudgetError, match=format_size(needed + target.weight_bytes)):
        fit(both, 64, **given(budget=needed, wants_draft=False))


def test_a_draft_that_is_not_wanted_or_not_there_is_not_missed(pair):
    alone = pair.model_copy(update={"draft": None})
    for manifest, wants in ((pair, False), (alone, True)):
        made = fit(manifest, 1024, **given(available=1300 * MIB, wants_draft=wants))
        assert (made.keeps_draft, made.note) == (False, "")
        assert made.plan.draft_weights == made.plan.draft_kv == 0


def test_a_draft_in_the_targets_own_file_adds_its_cache_only(pair):
    assert pair.draft is not None
    same = pair.draft.model_copy(update={"weights": pair.target.weights})
    shared = pair.model_copy(update={"draft": same})
    room = needs(pair, 1024, draft=False) + same.kv_bytes(1024)
    assert fit(shared, 1024, **given(budget=room)).keeps_draft
    assert not fit(shared, 1024, **given(budget=room - 1)).keeps_draft
    assert not fit(pair, 1024, **given(budget=room)).keeps_draft


def test_a_budget_under_the_target_alone_names_the_largest_context_that_fits(pair):
    budget = needs(pair, 1000, draft=False)
    largest = 1000 // CONTEXT_STEP * CONTEXT_STEP
    with pytest.raises(MemoryBudgetError, match=rf"largest context that fits is {largest}$"):
        fit(pair, 4096, **given(budget=budget))
    with pytest.raises(MemoryBudgetError, match="no context fits"):
        fit(pair, 4096, **given(budget=1000))


def test_an_estimate_under_the_target_alone_refuses_nothing(pair):
    available = needs(pair, 1000, draft=False) + RESERVE
    made = fit(pair, 4096, **given(available=available))
    assert not made.keeps_draft
    assert "the draft model was left out" in made.note
    assert made.note.endswith("a context of 960 would fit")
    for nothing in (0, 1, RESERVE):
        note = fit(pair, 4096, **given(available=nothing, wants_draft=False)).note
        assert note.startswith("memory may not suffice: a run needs")
        assert "0 B are available" in note
        assert note.endswith("no smaller context would fit either")


@pytest.mark.parametrize("kind", ["budget", "available"])
def test_a_draft_that_must_draft_and_does_not_fit_is_an_error(pair, kind):
    with pytest.raises(MemoryBudgetError, match=r'^speculation "on": ') as caught:
        fit(pair, 1024, **given(**{kind: 1300 * MIB}, lookups=False, insists=True))
    proposed = str(caught.value).rpartition("memory=")[2].strip("'")
    enough = given(budget=parse_size(proposed), lookups=False, insists=True)
    assert fit(pair, 1024, **enough).keeps_draft
    assert not fit(pair, 1024, **given(**{kind: 1300 * MIB}, insists=True)).keeps_draft


@pytest.mark.parametrize("size", [1, 1025, 1130 * MIB + 1, (1 << 40) + 1, 3 * MIB // 2])
def test_a_size_rounded_up_is_read_back_as_no_less(size):
    assert size <= parse_size(format_size(size, up=True)) <= size * 1.1


def test_a_note_is_one_line(pair):
    for available, lookups in product((0, 1300 * MIB), (False, True)):
        assert "\n" not in fit(pair, 1024, **given(available=available, lookups=lookups)).note


def test_the_plan_made_at_export_counts_the_same(pair):
    target, draft = pair.target, pair.draft
    made = plan(target, draft, context=512, max_verify=target.max_verify)
    assert made == fit(pair, 512, **given()).plan


@pytest.mark.parametrize(
    "asked",
    ["12 parsecs", "", "GiB", 0, -1, "0", "-1GiB", True, "nan", "9" * 400, f"{1 << 63}", "1e3"],
)
def test_a_limit_that_is_no_size_is_refused_by_name(asked):
    with pytest.raises(OptionError, match=r"^memory: ") as caught:
        checked_memory(asked)
    assert "\n" not in str(caught.value)


def test_a_limit_is_read_as_everywhere_else():
    assert checked_memory("1.5GiB") == 3 << 29
    assert checked_memory(4096) == 4096
    assert checked_memory(None) is None


class Machine:
    """Files of a system that reports memory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, **files: object) -> None:
        for name, text in files.items():
            path = self.root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    def put(self, folder: str, **files: object) -> None:
        """Control files, a dot written as "__"."""
        for name, text in files.items():
            path = self.root / "sys/fs/cgroup" / folder / name.replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path) -> Machine:
    made = Machine(tmp_path)
    made.write(proc__meminfo="MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:   6000 kB")
    return made


def test_a_machine_without_groups_has_what_the_kernel_calls_available(machine):
    assert available_bytes(machine.root) == 6000 << 10


def test_where_the_kernel_does_not_say_nothing_is_known(tmp_path):
    assert available_bytes(tmp_path) is None
    made = Machine(tmp_path)
    for text in ("", "MemAvailable:", "MemAvailable: many kB", "MemFree: 5 kB"):
        made.write(proc__meminfo=text)
        assert available_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"memory__max": 1_000_000}, 1_000_000 - (400_000 - 150_000)),
        ({"memory__max": "max", "memory__high": 900_000}, 900_000 - 250_000),
        ({"memory__max": 1_000_000, "memory__high": "max"}, 750_000),
        ({"memory__max": 200_000}, 0),
        ({"memory__max": "max"}, 6000 << 10),
        ({"memory__max": 1 << 40}, 6000 << 10),
        ({"memory__max": "what"}, 6000 << 10),
        ({}, 6000 << 10),
    ],
)
def test_a_group_of_version_2_leaves_its_limit_less_what_cannot_be_taken_back(
    machine, limits, left
):
    machine.write(proc__self__cgroup="0::/app")
    stat = "anon 250000\nactive_file 0\ninactive_file 150000"
    machine.put("app", memory__current=400_000, memory__stat=stat, **limits)
    assert available_bytes(machine.root) == left


def test_a_group_of_version_1_does_likewise(machine):
    machine.write(proc__self__cgroup="7:cpu,cpuacct:/x\n4:memory:/a/b\n0::/")
    stat = "inactive_file 5\ntotal_inactive_file 100"
    files = {"memory__usage_in_bytes": 1000, "memory__stat": stat}
    machine.put("memory/a/b", memory__limit_in_bytes=5000, **files)
    assert available_bytes(machine.root) == 4100
    machine.put("memory/a/b", memory__limit_in_bytes=9223372036854771712)
    assert available_bytes(machine.root) == 6000 << 10


def test_the_tightest_of_the_groups_around_a_process_counts(machine):
    machine.write(proc__self__cgroup="0::/slice/app")
    machine.put("slice/app", memory__max="max", memory__current=10)
    machine.put("slice", memory__max=700, memory__current=300)
    machine.put("", memory__max=5000, memory__current=400)
    assert available_bytes(machine.root) == 400


@pytest.mark.parametrize("path", ["/docker/0123abc", "/../other", "/"])
def test_a_container_finds_its_own_limit_at_the_mount(machine, path):
    machine.write(proc__self__cgroup=f"0::{path}")
    machine.put("", memory__max=900, memory__current=100)
    (machine.root / "sys/fs/other").mkdir()
    for name, text in (("memory.max", "1"), ("memory.current", "0")):
        (machine.root / "sys/fs/other" / name).write_text(text)
    assert available_bytes(machine.root) == 800


@pytest.mark.parametrize("text", ["", "nonsense", "::", "0:", "0::", "\x00"])
def test_a_damaged_list_of_groups_is_passed_over(machine, text):
    machine.write(proc__self__cgroup=text)
    assert available_bytes(machine.root) == 6000 << 10


def test_this_machine_answers_with_a_size_or_not_at_all():
    found = available_bytes()
    assert found is None or found >= 0
