"""What `export/triton/model.py` sees of a Triton server: its python backend's module, requests.

Stricter than the server where a mistake would be silent there: outputs must be those of
config.pbtxt with their types, and nothing may follow the final flag.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

FINAL = 1
KINDS = {"TYPE_STRING": np.object_, "TYPE_INT32": np.int32, "TYPE_BOOL": np.bool_}


def read_config(model: Path) -> model_config_pb2.ModelConfig:
    text = (model / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


class TritonModelException(Exception):
    pass


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = "internal", "invalid", "unavailable", "gone"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        assert message
        assert "\n" not in message
        self.message, self.code = message, code


class Tensor:
    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self.array


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def said(self) -> SimpleNamespace:
        """Outputs by name, text decoded."""
        values = {each.name: each.array.item() for each in self.output_tensors}
        return SimpleNamespace(
            **{k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}
        )


class Sender:
    """Keeps what is sent; cancelled from the answer to question number `cancel_at` on."""

    def __init__(self, outputs: dict[str, Any], cancel_at: int | None, breaks: bool) -> None:
        self.sent: list[InferenceResponse] = []
        self.final = False
        self._outputs, self._cancel_at, self._breaks = outputs, cancel_at, breaks
        self._asked = 0

    def is_cancelled(self) -> bool:
        assert not self.final, "asked after the final flag"
        self._asked += 1
        return self._cancel_at is not None and self._asked > self._cancel_at

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert not self.final, "sent after the final flag"
        if self._breaks:
            raise RuntimeError("the pipe\nis broken")
        if response.error is None:
            found = {each.name: each.array for each in response.output_tensors}
            assert {name: array.dtype for name, array in found.items()} == self._outputs
            assert all(array.shape == (1,) for array in found.values())
        self.sent.append(response)
        self.final = flags == FINAL


class Request:
    def __init__(self, sender: Sender, inputs: dict[str, Any], parameters: dict[str, Any]) -> None:
        self.sender, self.inputs = sender, inputs
        self._parameters = parameters

    def get_response_sender(self) -> Sender:
        return self.sender

    def parameters(self) -> str:
        return json.dumps(self._parameters) if self._parameters else ""

    @property
    def texts(self) -> list[str]:
        return [each.said().text for each in self.sender.sent]

    @property
    def last(self) -> SimpleNamespace:
        assert self.sender.final
        return self.sender.sent[-1].said()

    @property
    def error(self) -> TritonError:
        """The one response of a request that failed at once."""
        assert self.sender.final
        (only,) = self.sender.sent
        assert only.error is not None
        return only.error


class Server:
    """Loads what lies in a model repository the way Triton's python backend does."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[str] = []
        module: Any = ModuleType("triton_python_backend_utils")
        module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
        module.TritonModelException, module.TritonError = TritonModelException, TritonError
        module.Tensor, module.InferenceResponse = Tensor, InferenceResponse
        module.Logger = SimpleNamespace(log_error=self.errors.append)
        module.get_input_tensor_by_name = lambda request, name: request.inputs.get(name)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        config = read_config(model)
        self._inputs = {e.name: model_config_pb2.DataType.Name(e.data_type) for e in config.input}
        self._outputs = {
            each.name: np.dtype(KINDS[model_config_pb2.DataType.Name(each.data_type)])
            for each in config.output
        }
        spec = importlib.util.spec_from_file_location("triton_model", model / "1" / "model.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        self.instance = loaded.TritonPythonModel()
        as_json = json_format.MessageToDict(config, preserving_proto_field_name=True)
        self.instance.initialize(
            {
                "model_name": config.name,
                "model_config": json.dumps(as_json),
                "model_repository": str(model),
                "model_version": "1",
            }
        )

    def request(
        self,
        *,
        cancel_at: int | None = None,
        breaks: bool = False,
        parameters: dict[str, Any] | None = None,
        **inputs: Any,
    ) -> Request:
        tensors = {}
        for name, value in inputs.items():
            kind = KINDS[self._inputs[name]]
            values = value if isinstance(value, list) else [value]
            raw = [each.encode() if isinstance(each, str) else each for each in values]
            tensors[name] = Tensor(name, np.array(raw, kind))
        return Request(Sender(self._outputs, cancel_at, breaks), tensors, parameters or {})

    def run(self, *requests: Request) -> None:
        assert self.instance.execute(list(requests)) is None

    def ask(self, **given: Any) -> Request:
        request = self.request(**given)
        self.run(request)
        return request
