"""What the driver says of a GPU, through a library that answers as the driver would."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import pytest

from machines import FakeNvml, install
from specedge.engines import cuda
from specedge.errors import EngineError

H200 = cuda.Device("NVIDIA H200", (9, 0), 143 << 30, (13, 0))


def write(pointer, value) -> int:
    """What C does through a pointer that `ctypes.byref` made."""
    pointer._obj.value = value
    return 0


@dataclass
class Driver:
    """libcuda.so.1 with GPUs; contexts are counted."""

    device: cuda.Device = H200
    count: int = 1
    init: int = 0
    lacks: tuple[str, ...] = ()
    contexts: int = 0
    most: int = 0
    current: list[int] = field(default_factory=list)

    def __getattribute__(self, name: str):
        if name.startswith("cu") and name in object.__getattribute__(self, "lacks"):
            return lambda *_: 999
        return object.__getattribute__(self, name)

    def cuInit(self, flags):
        return self.init

    def cuDriverGetVersion(self, version):
        major, minor = self.device.cuda
        return write(version, 1000 * major + 10 * minor)

    def cuDeviceGetCount(self, count):
        return write(count, self.count)

    def cuDeviceGet(self, handle, ordinal):
        return write(handle, 40 + ordinal)

    def cuDeviceGetName(self, buffer, size, handle):
        buffer.value = self.device.name.encode()[: size - 1]
        return 0

    def cuDeviceTotalMem_v2(self, size, handle):
        return write(size, self.device.total_bytes)

    def cuDeviceGetAttribute(self, value, attribute, handle):
        return write(value, self.device.capability[{75: 0, 76: 1}[attribute]])

    def cuDevicePrimaryCtxRetain(self, context, handle):
        self.contexts += 1
        self.most = max(self.most, self.contexts)
        return write(context, 7)

    def cuDevicePrimaryCtxRelease_v2(self, handle):
        self.contexts -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.current.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        return write(context, self.current.pop())

    def cuMemGetInfo_v2(self, free, total):
        assert self.current == [7], "asked outside a context"
        write(free, 99 << 30)
        return write(total, self.device.total_bytes)


@pytest.fixture
def driver(monkeypatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *_: made)
    install(monkeypatch, None)
    return made


def test_a_gpu_is_found_with_what_the_driver_says_of_it(driver):
    assert cuda.find() == H200
    assert H200.sm == "SM90"
    assert (driver.most, cuda.required("engine cuda")) == (0, H200)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"count": 0}, "the driver finds no GPU; see whether nvidia-smi lists one"),
        ({"init": 100}, "the driver finds no GPU"),
        ({"init": 34}, "the stub that programs are linked with"),
        ({"init": 803}, "of different versions; restart"),
        ({"init": 12345}, "does not start (cuInit says 12345)"),
    ],
)
def test_why_there_is_no_gpu_is_one_line_with_what_to_do(driver, changed, said):
    for name, value in changed.items():
        setattr(driver, name, value)
    why = cuda.find()
    assert isinstance(why, str)
    assert said in why
    assert "\n" not in why
    with pytest.raises(EngineError, match=r"^engine cuda: no NVIDIA GPU can be used: .*--engine"):
        cuda.required("engine cuda")


def test_a_gpu_that_is_not_there_is_refused_by_its_number(driver):
    driver.count = 2
    assert cuda.find(1) == H200
    assert cuda.find(2) == "there is no GPU 2: CUDA sees 2, counted from 0"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("libcuda.so.1: cannot open shared object file: No such file", "driver is not installed"),
        ("libcuda.so.1: wrong\nELF class", "library does not load: libcuda.so.1: wrong ELF class"),
    ],
)
def test_a_driver_that_is_missing_or_broken_is_told_apart(monkeypatch, error, said):
    def fails(name, *_):
        raise OSError(error)

    install(monkeypatch, None)
    monkeypatch.setattr(ctypes, "CDLL", fails)
    assert said in cuda.find()
    assert cuda.free_bytes() is None


def test_free_memory_is_asked_in_a_context_that_is_given_back(driver):
    assert cuda.free_bytes() == 99 << 30
    assert (driver.most, driver.contexts, driver.current) == (1, 0, [])
    driver.lacks = ("cuMemGetInfo_v2",)
    assert cuda.free_bytes() is None
    driver.lacks = ("cuCtxPushCurrent_v2",)
    assert cuda.free_bytes() is None
    assert (driver.contexts, driver.current) == (0, [])
    driver.lacks = ("cuDevicePrimaryCtxRetain",)
    assert cuda.free_bytes() is None
    assert driver.contexts == 0


def test_free_memory_is_asked_without_a_context_where_nvml_answers(driver, monkeypatch):
    nvml = FakeNvml()
    install(monkeypatch, nvml)
    assert cuda.free_bytes() == 140 << 30
    assert (driver.most, nvml.users) == (0, 0)
    install(monkeypatch, FakeNvml(lacks=("nvmlDeviceGetMemoryInfo",)))
    assert cuda.free_bytes() == 99 << 30


@pytest.mark.parametrize(
    ("capability", "dtype", "least"),
    [((7, 5), "bfloat16", "8.0"), ((5, 2), "float16", "5.3"), ((5, 2), "bfloat16", "8.0")],
)
def test_a_type_that_the_gpu_is_too_old_for_is_refused_with_another(capability, dtype, least):
    old = cuda.Device("Tesla", capability, 1, (12, 0))
    with pytest.raises(EngineError, match=rf"{dtype}, which needs compute capability {least}") as e:
        old.check_dtype(dtype, "engine cuda: target")
    other = "fp16" if capability >= (5, 3) else "fp32"
    assert f"export.activations={other}" in str(e.value)
    with pytest.raises(EngineError, match=f"--set draft.precision={other}"):
        old.check_dtype(dtype, "engine cuda: draft", "draft.precision")
    old.check_dtype("float32", "engine cuda: target")
    just = cuda.Device("A100", cuda.LEAST_CAPABILITY[dtype], 1, (12, 0))
    for device in (just, H200):
        device.check_dtype(dtype, "engine cuda: target")
