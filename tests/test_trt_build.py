"""Plans, really compiled: TensorRT-RTX parses and serialises without a GPU. None is run here.

Every family's target and draft become plans for two compute capabilities in every precision, and
graphs of which something would be lost on the way are refused.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import trt_graphs
from specedge.bundle import Bundle
from specedge.config import load_config
from specedge.engines.trt import building, library, parsing, plans
from specedge.engines.trt.building import build, build_options, check_buildable
from specedge.engines.trt.making import make
from specedge.engines.trt.progress import stoppable
from specedge.errors import PlanError
from specedge.export.builder import build as export
from specedge.progress import Silent
from tiny_exports import TinyExports, quick_rounding, read_spec
from tiny_models import FAMILIES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None,
    reason='tensorrt-rtx is not installed; pip install "specedge[tensorrt-rtx]" builds these plans',
)

BACKEND = "tensorrt-rtx"
CAPABILITIES = (89, 120)
PAIRS = [("int4", "fp16"), ("fp32", "int8"), ("bf16", "bf16")]  # precisions of target and draft
QUICK = {"gemma3": {"num_hidden_layers": 2, "sliding_window_pattern": 2}}  # windowed and full


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> TinyExports:
    return TinyExports(tmp_path_factory.mktemp("exports"))


@pytest.fixture(params=[(family, *pair) for family in FAMILIES for pair in PAIRS], ids=":".join)
def bundle(request: pytest.FixtureRequest, exports: TinyExports) -> Bundle:
    return pair_of(exports, *request.param)


def pair_of(exports: TinyExports, family: str, precision: str, draft_precision: str) -> Bundle:
    changes = QUICK.get(family, {})
    target = exports.checkpoint(family, **changes)
    draft = exports.checkpoint(family, seed=1, **changes)
    made = exports.bundle(
        target,
        draft,
        lowering="standard",
        precision=precision,
        draft_precision=draft_precision,
        block_size=32,
        context=96,
    )
    return Bundle.open(made)


def test_target_and_draft_become_plans_for_two_capabilities(bundle: Bundle) -> None:
    made = make(bundle, backend=BACKEND, capabilities=CAPABILITIES)
    try:
        keys = {
            (each.plan.record.key.role, each.plan.record.key.compute_capability) for each in made
        }
        assert keys == {(role, cc) for role in ("target", "draft") for cc in CAPABILITIES}
        for each in made:
            report = each.plan.record.report
            assert (
                len(each.plan.read()) == report.plan_bytes > (report.device_weight_bytes or 0) > 0
            )
            assert report.notes == []
            assert [widths.widest for widths in report.profiles] == [16, 96]
            assert all(widths.device_bytes for widths in report.profiles)
    finally:
        shutil.rmtree(bundle.path / "plans")  # a hundred of them are half a gigabyte


def test_the_exported_graph_itself_leads_lengths_to_every_attention(bundle: Bundle) -> None:
    """Of the file, by the onnx package; the build looks at what became of it."""
    for spec in (bundle.manifest.target, bundle.manifest.draft):
        assert spec is not None
        nodes = onnx.load(bundle.path / spec.model, load_external_data=False).graph.node
        makers = {output: node for node in nodes for output in node.output}
        attentions = [node for node in nodes if node.op_type == "Attention"]
        assert len(attentions) == spec.layers
        for node in attentions:
            assert len(node.input) == 4, "query, key, value, mask; no past, no nonpad_kv_seqlen"
            assert "cached_lengths" in leads_to(node.input[3], makers)
            assert not any(each.name == "is_causal" and each.i for each in node.attribute)


def leads_to(name: str, makers: dict[str, Any]) -> set[str]:
    found = {name}
    if name in makers and makers[name].op_type != "Shape":
        for source in makers[name].input:
            found |= leads_to(source, makers)
    return found


@pytest.mark.parametrize("flaw", trt_graphs.FLAWS)
def test_a_graph_that_would_lose_something_is_refused(flaw: str, tmp_path: Path) -> None:
    trt_graphs.write_graph(tmp_path / "target/model.onnx", flaw)
    with pytest.raises(PlanError, match=trt_graphs.FLAWS[flaw]):
        parsing.parse(library.load(BACKEND), tmp_path, trt_graphs.spec(64), 64)


def test_what_the_library_calls_unused_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the check of the network miss it: the library's own warning comes while it builds."""
    monkeypatch.setattr(parsing, "check_network", lambda *args: None)
    path = tmp_path / "target/model.onnx"
    trt_graphs.write_graph(path, "an input that nothing reads")
    with pytest.raises(PlanError, match="Unused Input: total_length"):
        build(tmp_path, trt_graphs.spec(64), hand_key())
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_dtype": "float32"}, "past.0.key is float16, the manifest says float32"),
        ({"vocab": 31}, "logits of 32 ids, the manifest says 31"),
        ({"kv_heads": 1}, "past.0.key has shape"),
        ({"layers": 2}, "inputs that differ: past.1.key"),
    ],
)
def test_a_manifest_that_describes_another_graph_is_refused_before_it_is_built(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    with pytest.raises(PlanError, match=said):
        build(tmp_path, trt_graphs.spec(64, **changes), hand_key())


@pytest.mark.parametrize("context", [16, 64])
def test_a_static_t_is_built_and_counted(
    context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def spied(*args: Any) -> parsing.Parsed:
        parsed = parsing.parse(*args)
        inputs = map(parsed.network.get_input, range(parsed.network.num_inputs))
        shapes.extend(tuple(each.shape) for each in inputs if each.name.startswith("past."))
        return parsed

    monkeypatch.setattr(building, "parse", spied)
    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    plan = build(tmp_path, trt_graphs.spec(64), hand_key(context=context))
    rows = context + 8  # room for what padding writes
    assert shapes == [(1, 2, rows, 16)] * 2
    assert plan.record.report.kv_bytes == 2 * 2 * rows * 16 * 2
    assert plan.record.report.profiles[1].widest == min(128, context)
    assert f"-T{context}.plan" in plan.path.name


def test_a_plan_has_no_taps(exports: TinyExports) -> None:
    checkpoint = exports.checkpoint("llama")
    path = exports.bundle(
        checkpoint, lowering="standard", precision="fp16", context=64, hidden_taps=[0, 2]
    )
    spec = Bundle.open(path).manifest.target
    network = parsing.parse(library.load(BACKEND), path, spec, 64).network
    outputs = {network.get_output(index).name for index in range(network.num_outputs)}
    assert spec.taps == [0, 2]
    assert len(outputs) == 3 + 2 * spec.layers
    assert not outputs & {"hidden.0", "hidden.2"}


def test_a_profile_that_the_library_does_not_take_is_no_plan_with_one_less(tmp_path: Path) -> None:
    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    with pytest.raises(PlanError, match=r"takes no profile verify of input_ids .*--tune-for"):
        build(tmp_path, trt_graphs.spec(64), hand_key(max_verify=2))
    assert not (tmp_path / "plans").exists()


def test_float32_attention_builds_only_as_decomposable(exports: TinyExports) -> None:
    opened = pair_of(exports, "llama", "fp32", "int8")
    spec = opened.manifest.target
    parsed = parsing.parse(library.load(BACKEND), opened.path, spec, 64)
    attentions = parsing.Layers(parsed.library, parsed.network).attentions
    assert [each.decomposable for each in attentions] == [True] * spec.layers
    for each in attentions:
        each.decomposable = False
    key = key_of(opened, context=64)
    config, _ = building._configured(parsed, key)
    with pytest.raises(PlanError, match="decomposable"):
        building._compiled(parsed, config, opened.path, Silent())


@pytest.mark.parametrize("width", [8, 512])
def test_heads_of_a_width_without_a_kernel_build_too(
    width: int, exports: TinyExports, tmp_path: Path
) -> None:
    target = exports.checkpoint("llama", head_dim=width, num_hidden_layers=1)
    made = exports.bundle(target, lowering="standard", precision="fp16", context=32)
    spec = read_spec(made)
    plan = build(made, spec, key_of(Bundle.open(made), context=32))
    assert plan.record.key.context == 32


@pytest.mark.parametrize(
    ("precision", "dtype", "said"),
    [
        ("bf16", "bfloat16", "no bfloat16, which needs 80"),
        ("int8", "bfloat16", "no bfloat16"),
        ("fp32", "float32", "no float32 matrix products for compute capability 75"),
        ("int4", "float16", "no int4 weights for compute capability 75"),
    ],
)
def test_a_precision_that_the_hardware_lacks_is_refused_before_anything_is_parsed(
    precision: str, dtype: str, said: str, tmp_path: Path
) -> None:
    spec = trt_graphs.spec(64, precision=precision, kv_dtype=dtype)
    with pytest.raises(PlanError, match=said):
        build(tmp_path, spec, hand_key(compute_capability=75))


def test_float16_builds_for_the_oldest_capability(tmp_path: Path) -> None:
    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    plan = build(tmp_path, trt_graphs.spec(64), hand_key(compute_capability=75))
    assert plan.path.parent.name == "sm75"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lowering": "ort"}, "export the bundle with --lowering standard"),
        ({"lowering": "concat"}, "grows by concatenation"),
        ({"context": 32}, "context 64 is above 32"),
        ({"weight_bytes": 1 << 60}, "does not fit the disk"),
    ],
)
def test_what_cannot_become_a_plan_is_refused_with_a_remedy(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=said):
        check_buildable(tmp_path, trt_graphs.spec(**{"context": 64} | changes), hand_key())


class Reporter(Silent):
    """Notes what it is told; may break off like Ctrl-C."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.steps = 0
        self.notes: list[tuple[float, str]] = []
        self.stop_at = stop_at

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.stages.append((title.split()[1], total))

    def advance(self, amount: int) -> None:
        assert amount == 1
        self.steps += amount
        if self.stop_at is not None and self.steps >= self.stop_at:
            raise KeyboardInterrupt

    def note(self, message: str) -> None:
        self.notes.append((time.monotonic(), message))


def test_progress_names_its_stages_and_promises_no_share_of_the_time(tmp_path: Path) -> None:
    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    reporter = Reporter()
    build(tmp_path, trt_graphs.spec(64), hand_key(), progress=reporter)
    assert reporter.stages == [("parsing", None), ("compiling", None), ("writing", None)]
    assert reporter.steps > 20
    assert reporter.notes == []


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, trt_graphs.spec(64), hand_key(), progress=Reporter(stop_at=5))
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_ctrl_c_waits_for_the_library_and_ends_the_build(tmp_path: Path) -> None:
    """The handler itself would raise inside the library's calls."""

    class Pressing(Reporter):
        def advance(self, amount: int) -> None:
            super().advance(amount)
            if self.steps == 5:
                signal.raise_signal(signal.SIGINT)
                self.survived = True

    trt_graphs.write_graph(tmp_path / "target/model.onnx")
    reporter, whole = Pressing(), Reporter()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, trt_graphs.spec(64), hand_key(), progress=reporter)
    assert reporter.survived
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert not (tmp_path / "plans").exists()
    build(tmp_path, trt_graphs.spec(64), hand_key(), progress=whole)
    assert reporter.steps < whole.steps / 2


@pytest.mark.parametrize("times", [1, 2])
def test_that_ctrl_c_was_heard_is_said_while_the_library_is_still_busy(times: int) -> None:
    reporter, watching = Reporter(), SimpleNamespace(stop=False)

    def press() -> None:
        """In this thread, so that the system call of the first goes on, as a library's would."""
        for _ in range(times):
            time.sleep(0.1)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    came_back = []

    def build_slowly() -> None:
        with stoppable(watching, reporter):
            pressing.start()
            ctypes.CDLL(None).usleep(900_000)
            came_back.append(time.monotonic())

    with pytest.raises(KeyboardInterrupt):
        build_slowly()
    pressing.join()
    ((said, message),) = reporter.notes
    assert said < came_back[0] - 0.3
    assert message.startswith("stopping at the library's next step")
    assert watching.stop


def test_other_signals_go_where_they_went_before() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.set_wakeup_fd(writer)
    watching, reporter = SimpleNamespace(stop=False), Reporter()
    try:
        with stoppable(watching, reporter):
            signal.raise_signal(signal.SIGUSR1)
        assert os.read(reader, 8) == bytes([signal.SIGUSR1])
    finally:
        assert signal.set_wakeup_fd(before) == writer
        signal.signal(signal.SIGUSR1, handler)
        os.close(reader)
        os.close(writer)
    assert (watching.stop, reporter.notes) == (False, [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((1, "Error Code 2: OutOfMemory (no further information)"), "memory of the GPU ran out"),
        ((1, "Requested amount of GPU memory could not be allocated: out of memory"), "ran out"),
        ((1, "Error Code 10: Could not find any implementation"), "Could not find any impl"),
        ((2, "only a warning"), "no reason given"),
    ],
)
def test_a_failed_build_says_what_to_do(line: tuple[int, str], said: str, tmp_path: Path) -> None:
    def fails(network: Any, config: Any) -> None:
        library.logger(BACKEND).lines.append(line)

    parsed = SimpleNamespace(
        library=library.load(BACKEND),
        builder=SimpleNamespace(build_serialized_network=fails),
        network=None,
    )
    library.logger(BACKEND).lines.clear()
    with pytest.raises(PlanError, match=f"(?s){said}.*engine cpu"):
        building._compiled(parsed, SimpleNamespace(), tmp_path, Silent())


@pytest.mark.parametrize(
    "text",
    [
        "Unused Input: cached_lengths",
        "Tensor X: datatype is unsupported, using FLOAT",
        "Profile kMAX values are not self-consistent.",
    ],
)
def test_a_warning_that_something_is_lost_is_no_mere_note(text: str) -> None:
    with pytest.raises(PlanError, match="would not compute this graph"):
        parsing.check_warnings(Path("model.onnx"), [(3, "fine"), (2, text)])


def hand_key(**changes: Any) -> plans.PlanKey:
    said: dict[str, Any] = {
        "backend": BACKEND,
        "version": "1",
        "compute_capability": 89,
        "device": None,
        "role": "target",
        "graph": "0" * 64,
        "context": 64,
        "max_verify": 8,
        "options": build_options(trt_graphs.spec(64)),
    }
    said |= changes
    said["prefill_chunk"] = min(128, said["context"])
    return plans.PlanKey(**said)


def key_of(opened: Bundle, context: int) -> plans.PlanKey:
    spec = opened.manifest.target
    return plans.key_for(
        opened.path,
        spec,
        backend=BACKEND,
        version="1",
        compute_capability=89,
        device=None,
        context=context,
        options=build_options(spec),
    )


@pytest.mark.model
def test_smollm2_becomes_a_plan(tmp_path: Path) -> None:
    config = load_config("smollm2", ["export.lowering=standard", "export.rounding=plain"])
    with quick_rounding():
        made = export(config, tmp_path / "smollm2")
    spec = read_spec(made)
    plan = build(made, spec, key_of(Bundle.open(made), context=2048))
    report = plan.record.report
    assert report.kv_bytes == spec.kv_bytes(2048 + 8)
    assert report.notes == []
    # packed weights stay packed; the table that embedding and head share is there twice
    assert report.device_weight_bytes is not None
    assert spec.weight_bytes < report.device_weight_bytes < 1.25 * spec.weight_bytes
