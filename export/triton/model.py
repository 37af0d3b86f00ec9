"""The `model.py` of a Triton model: requests in, text in many responses out.

`specedge export --triton` copies this file into a model repository as it stands. It needs an
installed specedge and Triton's own `triton_python_backend_utils`, which exists inside the server
only. Requests of one instance are served one after the other; docs/triton.md has the interface.

input      prompt or messages   STRING [1]; the latter a chat as JSON
           options              STRING [1]; keywords of `Model.stream` as a JSON object
           stream               BOOL [1]; false: one response with the whole text
output     text, finish_reason, result   STRING [1]
           sample                        INT32 [1]
in order   every response has all outputs; finish_reason and result are empty but for the last of
           a sample; the last response carries the final flag
an error   one response without outputs, with the final flag; the model goes on serving
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import specedge
from specedge.errors import DeadEndError, OptionError, PromptError, SpecedgeError, with_class

BUNDLE = "bundle"  # beside this file
_RESERVED = "triton_"  # how the server's own parameters of a request begin
_NUMBERS: dict[str, type] = {"threads": int, "context": int, "draft_length": int, "canary": float}
_TEXTS = ("engine", "draft_engine", "speculation", "memory")
_FLAGS = ("exact", "verify")
_THEIRS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")  # read by the backend itself
_CALLERS = (OptionError, PromptError, DeadEndError)  # the request's own fault


class _Cancelled(Exception):
    """The client has gone."""


class _Reply:
    """Responses of one request, none behind the one with the final flag."""

    def __init__(self, triton: Any, sender: Any) -> None:
        self._triton = triton
        self._sender = sender
        self._ended = False

    def check(self) -> None:
        """Raises _Cancelled when nobody waits for more."""
        if not self._ended and self._sender.is_cancelled():
            raise _Cancelled

    def send(self, text: str, sample: int, reason: str, result: str, *, last: bool) -> None:
        tensor = self._triton.Tensor
        strings = {"text": text, "finish_reason": reason, "result": result}
        outputs = [tensor(name, _strings(value)) for name, value in strings.items()]
        outputs.append(tensor("sample", np.array([sample], np.int32)))
        self._send(self._triton.InferenceResponse(output_tensors=outputs), last=last)

    def fail(self, code: str, message: str) -> None:
        """An error, in the log only where the client has its whole answer, or takes none."""
        kind = self._triton.TritonError
        response = self._triton.InferenceResponse(error=kind(message, getattr(kind, code)))
        try:
            if not self._ended:
                self._send(response, last=True)
                return
        except Exception as error:  # the client may be gone; the instance outlives it
            message = f"{message}; and the client cannot be told: {with_class(error)}"
        self._triton.Logger.log_error(message)

    def _send(self, response: Any, *, last: bool) -> None:
        self._ended = last
        if last:
            flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            self._sender.send(response, flags=flags)
        else:
            self._sender.send(response)


class TritonPythonModel:
    """One instance: one loaded bundle in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle with the `parameters` of config.pbtxt.

        Raises:
            TritonModelException: a parameter that is unknown or wrong, or a bundle that cannot be
                loaded; the server then reports the model as not ready.
        """
        self._triton: Any = importlib.import_module("triton_python_backend_utils")
        try:
            self._name = args["model_name"]
            given = json.loads(args["model_config"]).get("parameters", {})
            options = load_options({key: said["string_value"] for key, said in given.items()})
            folder = Path(args["model_repository"]) / args["model_version"] / BUNDLE
            self._model = specedge.load(folder, **options)
        except SpecedgeError as error:
            raise self._triton.TritonModelException(str(error)) from error

    def execute(self, requests: list[Any]) -> None:
        """Serve them in turn; whatever goes wrong with one is told to that one's client."""
        for request in requests:
            reply = _Reply(self._triton, request.get_response_sender())
            try:
                self._serve(request, reply)
            except _Cancelled:
                reply.fail("CANCELLED", "the request was cancelled")
            except _CALLERS as error:
                reply.fail("INVALID_ARG", str(error))
            except SpecedgeError as error:
                reply.fail("INTERNAL", str(error))
            except Exception as error:  # the instance outlives any request
                reply.fail("INTERNAL", with_class(error))

    def finalize(self) -> None:
        """Free the engines; the server calls it when the model is unloaded."""
        model = getattr(self, "_model", None)
        if model is not None:
            model.close()

    def _serve(self, request: Any, reply: _Reply) -> None:
        reply.check()  # it may have been cancelled while it waited for its turn
        prompt = self._prompt(request)
        options = request_options(self._text(request, "options"), request.parameters())
        streams = self._streams(request)
        with self._model.start(prompt, options) as generation:
            for event in generation:  # past the last one, which is when a canary works
                reply.check()
                result, last = event.result, generation.finished
                said = "" if result is None else result.to_json()
                if streams:
                    reply.send(event.text, event.sample, event.finish_reason or "", said, last=last)
                elif last and result is not None:
                    reply.send(result.text, 0, result.finish_reason, said, last=True)

    def _prompt(self, request: Any) -> Any:
        prompt, messages = self._text(request, "prompt"), self._text(request, "messages")
        if (prompt is None) == (messages is None):
            found = "neither" if prompt is None else "both"
            raise PromptError(f"request: expected one of prompt and messages, found {found}")
        if messages is None:
            return prompt
        said = _parsed("messages", messages)
        # a list of numbers would be a prompt of ids
        if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
            raise PromptError("messages: expected a JSON list of objects with role and content")
        return said

    def _streams(self, request: Any) -> bool:
        values = self._values(request, "stream")
        return True if values is None else bool(values[0])

    def _text(self, request: Any, name: str) -> str | None:
        values = self._values(request, name)
        if values is None:
            return None
        raw = values[0]
        try:
            return raw.decode("utf-8") if isinstance(raw, bytes) else str(raw)
        except UnicodeDecodeError as error:
            raise PromptError(f"{name}: not UTF-8 at byte {error.start}") from None

    def _values(self, request: Any, name: str) -> Any:
        """The one value of an input, in an array; None: it was not sent."""
        tensor = self._triton.get_input_tensor_by_name(request, name)
        if tensor is None:
            return None
        values = tensor.as_numpy().reshape(-1)
        if len(values) != 1:
            raise OptionError(f"{name}: expected one value, found {len(values)}")
        return values


def load_options(given: dict[str, str]) -> dict[str, Any]:
    """Keywords of `specedge.load` from the parameters of config.pbtxt, all of them text.

    Raises:
        OptionError: one is unknown, or not what it should be.
    """
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in _THEIRS:
            continue
        if name in _NUMBERS:
            options[name] = _number(name, value, _NUMBERS[name])
        elif name in _FLAGS:
            if value not in ("true", "false"):
                raise OptionError(f"{name}: expected true or false, found {value!r}")
            options[name] = value == "true"
        elif name == "proposers":
            options[name] = [part.strip() for part in value.split(",") if part.strip()]
        elif name in _TEXTS:
            options[name] = value
        else:
            known = ", ".join(sorted((*_NUMBERS, *_FLAGS, *_TEXTS, "proposers")))
            raise OptionError(f"config.pbtxt: no parameter {name!r}; there are {known}")
    return options


def request_options(given: str | None, parameters: str) -> dict[str, Any]:
    """Options of a request: its `options` and, for those given one by one, its parameters.

    Args:
        given: a JSON object; None: not sent.
        parameters: as the server keeps them, a JSON object of plain values, or nothing.

    Raises:
        OptionError: not a JSON object, or an option that is in both.
    """
    options = {} if given is None else _parsed("options", given)
    if not isinstance(options, dict):
        raise OptionError('options: expected a JSON object, such as {"max_tokens": 64}')
    for name, value in (_parsed("parameters", parameters) if parameters else {}).items():
        if name.startswith(_RESERVED):
            continue
        if name in options:
            raise OptionError(f"{name!r}: given in options and as a parameter; leave one out")
        options[name] = value
    return options


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where}: not valid JSON: {error}") from None


def _number(name: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise OptionError(f"{name}: expected {what}, found {value!r}") from None


def _strings(value: str) -> Any:
    """STRING [1]: bytes in an array of objects, which is how the server keeps text."""
    return np.array([value.encode("utf-8", "replace")], np.object_)
