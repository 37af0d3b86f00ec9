"""Sessions on providers that this machine lacks: what is asked of the runtime, and every refusal.

The runtime is a stand-in that says what it was given, and answers as ONNX Runtime does: it falls
back without a word.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from specedge.bundle import Bundle
from specedge.contract import GraphSpec
from specedge.engines import cuda, ort_options
from specedge.engines.ort import libraries, providers
from specedge.errors import EngineError
from tiny import write_bundle

H200 = cuda.Device("NVIDIA H200", (9, 0), 143 << 30, (13, 0))
ALL = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
GOES = {  # what each provider is given of a sound graph
    "CUDAExecutionProvider": ["MatMul /head/MatMul", "TensorScatter /0/key/Scatter"],
    "CPUExecutionProvider": ["Gather /lengths/gather/Gather", "Unsqueeze /mask/Unsqueeze"],
}


@dataclass
class Runtime:
    """The module `onnxruntime`."""

    available: Sequence[str] = ALL
    works: Sequence[str] = ALL
    goes: dict[str, list[str]] = field(default_factory=lambda: dict(GOES))
    error: str = ""
    __version__: str = "1.31.1"
    asked: list[SimpleNamespace] = field(default_factory=list)

    def SessionOptions(self) -> SimpleNamespace:
        entries: dict[str, str] = {}
        return SimpleNamespace(entries=entries, add_session_config_entry=entries.__setitem__)

    def get_available_providers(self) -> list[str]:
        return list(self.available)

    def InferenceSession(self, model, settings, *, providers, enable_fallback):
        names = [name for name, _ in providers]
        self.asked.append(
            SimpleNamespace(
                model=model,
                settings=settings,
                names=names,
                options=dict(providers),
                fallback=enable_fallback,
            )
        )
        if self.error:
            raise RuntimeError(self.error)
        using = [name for name in names if name in self.works]
        parts = [
            SimpleNamespace(
                ep_name=name,
                get_nodes=lambda nodes=nodes: [
                    SimpleNamespace(op_type=op, name=rest)
                    for op, _, rest in (node.partition(" ") for node in nodes)
                ],
            )
            for name, nodes in self.goes.items()
        ]
        return SimpleNamespace(
            get_providers=lambda: list(dict.fromkeys([*using, "CPUExecutionProvider"])),
            get_provider_graph_assignment_info=lambda: parts,
        )


@pytest.fixture
def runtime(monkeypatch) -> Runtime:
    """On a machine that has everything."""
    made = Runtime()
    monkeypatch.setattr(providers, "ort", made)
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: H200)
    monkeypatch.setattr(cuda, "free_bytes", lambda ordinal=0: 3 << 30)
    monkeypatch.setattr(libraries, "built_for", lambda: (13, 0))
    monkeypatch.setattr(libraries, "prepare", lambda provider: None)
    monkeypatch.setattr(libraries, "trouble", lambda provider: None)
    monkeypatch.setattr(libraries, "tensorrt_version", lambda: "10.13")
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "tiny", draft=True, context=64)


@pytest.fixture
def spec(bundle: Path) -> GraphSpec:
    changes = {"lowering": "standard", "kv_dtype": "float16", "layers": 2}
    return Bundle.open(bundle).manifest.target.model_copy(update=changes)


def session(bundle: Path, spec: GraphSpec, provider: str, **given):
    return providers.open_session(bundle, spec, provider, 3, **given)


def refused(bundle: Path, spec: GraphSpec, provider: str, **given) -> str:
    with pytest.raises(EngineError) as caught:
        session(bundle, spec, provider, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What the runtime is asked for


def test_a_session_is_asked_for_one_provider_without_fall_back(runtime, bundle, spec):
    session(bundle, spec, "cuda", options={"gpu_mem_limit": 7, "use_tf32": False})
    (asked,) = runtime.asked
    assert (asked.names, asked.fallback) == (["CUDAExecutionProvider"], 0)
    assert asked.options["CUDAExecutionProvider"] == {"gpu_mem_limit": "7", "use_tf32": "0"}
    assert asked.settings.intra_op_num_threads == 3
    assert "session.force_spinning_stop" not in asked.settings.entries


def test_entries_of_the_session_go_to_the_session_and_a_config_wins(runtime, bundle, spec):
    own = {"session.qdq_matmulnbits_accuracy_level": "0", "session.use_env_allocators": "1"}
    asked = {"session.qdq_matmulnbits_accuracy_level": 4, "session.disable_prepacking": True}
    session(bundle, spec, "cpu", entries=own, options=asked, takes_turns=True)
    assert runtime.asked[0].settings.entries == {
        "session.qdq_matmulnbits_accuracy_level": "4",
        "session.use_env_allocators": "1",
        "session.disable_prepacking": "1",
        "session.force_spinning_stop": "1",
    }
    assert runtime.asked[0].options == {"CPUExecutionProvider": {}}


@pytest.mark.parametrize("provider", ["cpu", "cuda", "tensorrt"])
def test_an_option_that_is_misspelt_is_refused_with_the_nearest(runtime, bundle, spec, provider):
    said = refused(bundle, spec, provider, options={"session.disable_prepackin": 1})
    name = ort_options.NAMES[provider]
    assert said.startswith(f"[engines.{name}] no option 'session.disable_prepackin'; did you mean")
    assert "there are" in refused(bundle, spec, provider, options={"zzzz": 1})
    assert runtime.asked == []


def test_options_of_another_provider_and_pointers_are_refused(runtime, bundle, spec):
    for provider, option in (
        ("cpu", "gpu_mem_limit"),
        ("cuda", "trt_fp16_enable"),
        ("cuda", "user_compute_stream"),
        ("tensorrt", "trt_engine_cache_path"),
        ("tensorrt", "trt_profile_min_shapes"),
    ):
        assert f"no option {option!r}" in refused(bundle, spec, provider, options={option: 1})
    assert "device_id = '-1': expected" in refused(bundle, spec, "cuda", options={"device_id": -1})


def test_tensorrt_is_told_shapes_of_every_input_and_where_to_keep_engines(runtime, bundle, spec):
    runtime.goes = {"TensorrtExecutionProvider": ["MatMul /head/MatMul"], **GOES}
    session(bundle, spec, "tensorrt", context=50, options={"device_id": 1})
    (asked,) = runtime.asked
    assert asked.names == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    assert asked.options["CUDAExecutionProvider"] == {"device_id": "1"}
    said = asked.options["TensorrtExecutionProvider"]
    folder = Path(said["trt_engine_cache_path"])
    assert folder.is_dir()
    assert folder.parent == bundle / "plans" / "NVIDIA-H200"
    assert folder.name.startswith("target-ort-tensorrt-1.31.1-10.13-sm90-")
    assert folder.name.endswith("-T57")  # 50 rows and room for padding
    assert said["trt_timing_cache_path"] == said["trt_engine_cache_path"]
    assert not [name for name in said if name.endswith(("fp16_enable", "bf16_enable"))]
    shapes = {
        kind: dict(part.split(":") for part in said[f"trt_profile_{kind}_shapes"].split(","))
        for kind in ("min", "opt", "max")
    }
    heads = f"1x{spec.kv_heads}"
    for kind, width, scored, rows in (
        ("min", 1, 1, 1),
        ("opt", spec.max_verify, spec.max_verify, 57),
        ("max", 128, 128, 57),
    ):
        kv = f"{heads}x{rows}x{spec.head_dim}"
        past = {f"past.{i}.{part}": kv for i in (0, 1) for part in ("key", "value")}
        given = {"input_ids": f"1x{width}", "cached_lengths": "1", "logit_rows": f"{scored}"}
        assert shapes[kind] == given | past


@pytest.mark.parametrize(("context", "rows"), [(None, 71), (64, 71), (50, 57), (8, 55)])
def test_the_profile_has_room_for_the_context_and_for_measuring_widths(
    runtime, bundle, spec, context, rows
):
    runtime.goes = {"TensorrtExecutionProvider": ["MatMul /head/MatMul"], **GOES}
    session(bundle, spec, "tensorrt", context=context)
    shapes = runtime.asked[0].options["TensorrtExecutionProvider"]["trt_profile_max_shapes"]
    assert f"past.1.value:1x{spec.kv_heads}x{rows}x{spec.head_dim}" in shapes.split(",")


def test_compiled_engines_lie_in_the_cache_where_the_bundle_cannot_be_written(
    runtime, bundle, spec, tmp_path, monkeypatch
):
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    (bundle / "plans").write_text("not a folder")
    found = providers.engine_cache(bundle, spec, H200, 64)
    assert found.is_relative_to(tmp_path / "cache" / "plans")
    assert list(found.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(EngineError, match=r"cannot be kept.*set SPECEDGE_CACHE"):
        providers.engine_cache(bundle, spec, H200, 64)


def test_engines_of_other_weights_gpus_versions_and_contexts_lie_apart(
    runtime, bundle, spec, monkeypatch
):
    first = providers.engine_cache(bundle, spec, H200, 64)
    others = [
        providers.engine_cache(bundle, spec, H200, 65),
        providers.engine_cache(bundle, Bundle.open(bundle).manifest.draft, H200, 64),
        providers.engine_cache(bundle, spec, cuda.Device("L4", (8, 9), 1, (13, 0)), 64),
    ]
    runtime.__version__ = "1.32.0"
    others.append(providers.engine_cache(bundle, spec, H200, 64))
    manifest = bundle / "specedge.json"
    said = json.loads(manifest.read_text())
    said["files"][spec.weights]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(said))
    others.append(providers.engine_cache(bundle, spec, H200, 64))
    assert len({first, *others}) == 6


# What is refused


def test_a_runtime_for_the_cpu_is_refused_with_the_one_to_install(runtime, bundle, spec):
    runtime.available = ["CPUExecutionProvider"]
    said = refused(bundle, spec, "cuda")
    assert said.startswith("engine cuda: the ONNX Runtime installed here was built without CUDA")
    assert 'pip install "specedge[gpu]"' in said


def test_no_driver_is_refused_before_anything_is_loaded(runtime, bundle, spec, monkeypatch):
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: "no driver; install it")
    said = refused(bundle, spec, "tensorrt")
    assert said.startswith("engine ort-tensorrt: no NVIDIA GPU can be used: no driver; install it")
    assert runtime.asked == []


@pytest.mark.parametrize(("serves", "fits"), [((12, 9), False), ((13, 0), True), ((14, 1), True)])
def test_a_driver_older_than_the_runtimes_cuda_is_refused(
    runtime, bundle, spec, monkeypatch, serves, fits
):
    device = cuda.Device("NVIDIA H200", (9, 0), 1, serves)
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: device)
    if fits:
        session(bundle, spec, "cuda")
        return
    said = refused(bundle, spec, "cuda")
    assert "driver serves CUDA 12.9, ONNX Runtime 1.31.1 is built for CUDA 13.0; update" in said


def test_a_type_that_the_gpu_lacks_is_refused(runtime, bundle, spec, monkeypatch):
    turing = cuda.Device("T4", (7, 5), 1, (13, 0))
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: turing)
    session(bundle, spec, "cuda")
    brain = spec.model_copy(update={"kv_dtype": "bfloat16"})
    assert "bfloat16, which needs compute capability 8.0; T4 has 7.5" in refused(
        bundle, brain, "cuda"
    )


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_that_the_runtime_gave_up_in_silence_is_an_error(
    runtime, bundle, spec, monkeypatch, provider
):
    runtime.works = ["CPUExecutionProvider"]
    assert "ONNX Runtime chose CPUExecutionProvider; run `specedge doctor`" in refused(
        bundle, spec, provider
    )
    why = "ONNX Runtime needs libcublas.so.13, which is not here; install it"
    monkeypatch.setattr(libraries, "trouble", lambda name: why if name == provider else None)
    assert refused(bundle, spec, provider).endswith(f"CPUExecutionProvider; {why}")
    runtime.error = "Please install\nTensorRT libraries"
    assert refused(bundle, spec, provider).endswith(f"cannot load the graph: {why}")


def test_nodes_that_the_cpu_would_compute_are_named_and_shapes_are_not(runtime, bundle, spec):
    session(bundle, spec, "cuda")
    runtime.goes["CPUExecutionProvider"] = [
        "Shape /lengths/Shape",
        *(f"Attention /{layer}/attn/Attention" for layer in range(5)),
    ]
    said = refused(bundle, spec, "cuda")
    assert "CUDAExecutionProvider has no kernel for Attention /0/attn/Attention" in said
    assert "/2/attn/Attention and 2 more" in said
    assert said.endswith("in silence; run with --engine cpu")
    assert "Shape" not in said
    fused = spec.model_copy(update={"lowering": "ort"})
    assert "export with --lowering standard" in refused(bundle, fused, "cuda")


def test_a_graph_of_which_tensorrt_takes_nothing_is_refused(runtime, bundle, spec):
    assert "TensorRT takes no node of this graph" in refused(bundle, spec, "tensorrt")


@pytest.mark.parametrize(
    "error",
    [
        "BFCArena: Failed to allocate memory for requested buffer of size 512",
        "CUDA failure 2: out of memory ; GPU=0",
    ],
)
def test_no_room_on_the_device_says_how_much_there_is_and_what_to_do(runtime, bundle, spec, error):
    runtime.error = error
    said = refused(bundle, spec, "cuda")
    assert "out of device memory (3.0 GiB free of 143.0 GiB on NVIDIA H200); choose a" in said
    assert said.endswith(f"({error})")


def test_an_error_of_a_call_on_a_device_names_that_device(runtime):
    said = providers.explained(RuntimeError("CUDA error: out of memory"))
    assert said.startswith("out of device memory (3.0 GiB free")
    assert providers.explained(RuntimeError("std::bad_alloc")).startswith("out of memory; choose a")
    assert providers.explained(RuntimeError("no\nsuch node")) == "no such node"


# Libraries


def test_the_first_library_that_is_missing_is_named_with_what_brings_it(monkeypatch):
    monkeypatch.setattr(libraries, "built_for", lambda: (13, 0))
    for missing, said in (
        ("libcublasLt.so.13", "PyTorch's build for CUDA 13 brings them"),
        ("libnvinfer.so.10", 'pip install "tensorrt>=10,<11"'),
    ):
        monkeypatch.setattr(libraries, "missing_library", lambda provider, name=missing: name)
        trouble = libraries.trouble("tensorrt")
        assert trouble is not None
        assert trouble.startswith(f"ONNX Runtime needs {missing}, which is not here; ")
        assert said in trouble
    monkeypatch.setattr(libraries, "missing_library", lambda provider: None)
    assert libraries.trouble("cuda") is None


def test_libraries_of_packages_are_loaded_from_wherever_these_are(tmp_path, monkeypatch, capsys):
    """Here in two places; the runtime prints what it does not find, which nobody is to see."""
    said = []

    def preload(**given):
        print("Failed to load libnothing.so")
        said.append(given.get("directory"))

    stub = SimpleNamespace(
        preload_dlls=preload, set_default_logger_severity=lambda severity: said.append(severity)
    )
    monkeypatch.setattr(libraries, "ort", stub)
    for place, package in (("one", "cu13"), ("one", "cudnn"), ("two", "nccl")):
        (tmp_path / place / "nvidia" / package / "lib").mkdir(parents=True)
    for place in ("one", "two"):
        monkeypatch.syspath_prepend(tmp_path / place)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    libraries.prepare("cuda")
    ours = [each for each in said if str(each).startswith(str(tmp_path))]
    parts = ("one/nvidia/cu13/lib", "one/nvidia/cudnn/lib", "two/nvidia/nccl/lib")
    assert sorted(ours) == [str(tmp_path / part) for part in parts]
    assert said[-2:] == [None, 4]  # then the system's, and silence
    assert capsys.readouterr().out == ""


def test_what_a_provider_lacks_is_found_in_a_child(monkeypatch):
    own = libraries.missing_library("cuda")  # the CPU's distribution lacks the provider itself
    assert own is None or own.startswith("lib")
    code = "import sys; sys.exit('/some/x.so.1: cannot open shared object file: No such file')"
    monkeypatch.setattr(libraries, "_LOAD", code)
    assert libraries.missing_library("cuda") == "x.so.1"
    monkeypatch.setattr(libraries, "_LOAD", "import os; os.abort()")
    assert libraries.missing_library("cuda") is None
