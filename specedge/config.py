"""The config file: one TOML file describes a pair, and this is the one place that checks it.

Every key is typed and has a range. A key that this version cannot honour is refused by name, so
that a config never promises more than the run keeps. `load_config` turns whatever is wrong into
`ConfigError`, one line for each finding: file, [section], what was found, what is allowed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from specedge.configs import find
from specedge.contract import (
    DefaultAcceptance,
    Element,
    EngineOptions,
    Margin,
    Precision,
    SamplingDefaults,
)
from specedge.engines.matching import ON_GPU, nearest
from specedge.errors import ConfigError
from specedge.limits import MARGIN, MAX_VERIFY, shown
from specedge.memory import MIN_CONTEXT, parse_size

Rounding = Literal["plain", "mse", "calibrated"]
ProposerName = Literal["ngram", "draft"]
ENGINES = ("cpu", *ON_GPU)
_ELEMENTS: dict[str, Element] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MAX_CONTEXT = 1 << 20


def _size(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    try:
        return parse_size(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


Size = Annotated[int, BeforeValidator(_size)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelConfig(_Section):
    """[target] or [draft]: where a checkpoint comes from and how it is stored in the bundle."""

    source: Text  # a folder, a .gguf file, a hub id, or package:NAME==VERSION
    precision: Precision = "int4"
    licence: Text | None = None
    licence_note: Text | None = None
    sha256: Sha256 | None = None  # of the weights file, or of the joined parts


class ExportConfig(_Section):
    """[export]: the shape of the bundle."""

    frontend: Literal["native", "optimum"] = "native"
    lowering: Literal["ort", "standard"] = "ort"  # of the native front end
    activations: Literal["auto", "fp32", "fp16", "bf16"] = "auto"  # of hidden states and KV
    context: Annotated[int, Field(ge=MIN_CONTEXT, le=MAX_CONTEXT)] = 4096
    max_verify: Annotated[int, Field(ge=1, le=MAX_VERIFY)] = 16
    hidden_taps: list[Annotated[int, Field(ge=0)]] = []  # target layers whose input is an output
    block_size: Literal[32, 64, 128] = 64
    symmetric: bool | None = None  # None: where the lowering asks for it
    rounding: Rounding = "calibrated"
    memory_budget: Size | None = None

    @property
    def is_symmetric(self) -> bool:
        """Zero points are in the middle: all that TensorRT takes."""
        return self.lowering == "standard" if self.symmetric is None else self.symmetric

    @model_validator(mode="after")
    def _lowering_can(self) -> ExportConfig:
        if self.lowering == "standard" and not self.is_symmetric:
            raise ValueError("symmetric = false: lowering standard has no zero points")
        if self.lowering == "ort" and self.activations == "bf16":
            raise ValueError("activations = 'bf16': lowering ort has fp32 and fp16; use standard")
        return self

    @field_validator("hidden_taps")
    @classmethod
    def _each_tap_once(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("lists a layer twice")
        return value

    @model_validator(mode="after")
    def _verify_fits(self) -> ExportConfig:
        if self.max_verify > self.context:
            raise ValueError(f"max_verify = {self.max_verify} is above context = {self.context}")
        return self


class SpeculationConfig(_Section):
    """[speculation]: what a run does unless it is told otherwise."""

    mode: Literal["auto", "on", "off"] = "auto"
    proposers: list[ProposerName] = ["ngram", "draft"]  # in priority order
    draft_length: Annotated[int, Field(ge=0)] = 4  # K of "on", at most max_verify - 1
    ngram_min: Annotated[int, Field(ge=1, le=32)] = 2
    ngram_max: Annotated[int, Field(ge=1, le=32)] = 6
    acceptance: DefaultAcceptance = "auto"
    margin: Margin = MARGIN  # speed over plain under which auto does not draft

    @field_validator("acceptance", mode="before")
    @classmethod
    def _any_temperature(cls, value: object) -> object:
        if value == "greedy":
            raise ValueError(
                "would refuse every request above temperature 0; use auto, which is greedy at 0"
            )
        return value

    @field_validator("proposers")
    @classmethod
    def _each_once(cls, value: list[ProposerName]) -> list[ProposerName]:
        if len(set(value)) != len(value):
            raise ValueError("lists a proposer twice")
        return value

    @model_validator(mode="after")
    def _ngram_range(self) -> SpeculationConfig:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min = {self.ngram_min} is above ngram_max = {self.ngram_max}")
        return self


class GenerationConfig(SamplingDefaults):
    """[generation]: defaults of a request."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT)] = 512

    @model_validator(mode="after")
    def _least_fits(self) -> GenerationConfig:
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens = {self.min_tokens} is above max_tokens = {self.max_tokens}"
            )
        return self


class Config(_Section):
    """A whole config file."""

    name: Name
    target: ModelConfig
    draft: ModelConfig | None = None
    export: ExportConfig = ExportConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    generation: GenerationConfig = GenerationConfig()
    engines: dict[str, EngineOptions] = {}  # [engines.cuda]: the runtime's own options

    @field_validator("engines", mode="before")
    @classmethod
    def _plain_options(cls, value: object) -> object:
        """One finding for each wrong entry: a union would list every type that it is not."""
        if not isinstance(value, dict):
            raise ValueError("expected sections, as in [engines.cuda]")
        for name, options in value.items():
            if name not in ENGINES:
                near = nearest(str(name))
                hint = f"did you mean {near!r}? " if near in ENGINES else ""
                raise ValueError(f"no engine {name!r}; {hint}(known: {', '.join(ENGINES)})")
            if not isinstance(options, dict):
                raise ValueError(f"{name} is a value; expected a section, as in [engines.{name}]")
            for key, option in options.items():
                if not isinstance(option, str | int | float):
                    raise ValueError(
                        f"[engines.{name}] {key} = {shown(option)}: expected text, a number, true "
                        "or false"
                    )
        return value

    def activations(self, model: ModelConfig) -> Element:
        """Of one model's hidden states and KV."""
        asked = self.export.activations
        if asked != "auto":
            return _ELEMENTS[asked]
        if model.precision in _ELEMENTS:
            return _ELEMENTS[model.precision]
        return "float16" if self.export.lowering == "standard" else "float32"

    @model_validator(mode="after")
    def _activations_fit(self) -> Config:
        for role, model in (("target", self.target), ("draft", self.draft)):
            if model is None or model.precision not in _ELEMENTS:
                continue
            asked = self.export.activations
            if asked not in ("auto", model.precision):
                raise ValueError(
                    f"[{role}] precision = {model.precision!r} with [export] activations = "
                    f"{asked!r}: weights that are not quantised are what they are multiplied "
                    "with; use activations = 'auto'"
                )
            if model.precision == "bf16" and self.export.lowering == "ort":
                raise ValueError(
                    f"[{role}] precision = 'bf16': lowering ort has fp32, fp16, int8 and int4; "
                    "use lowering = 'standard'"
                )
        return self

    @model_validator(mode="after")
    def _draft_length_fits(self) -> Config:
        longest = self.export.max_verify - 1
        if self.speculation.draft_length > longest:
            raise ValueError(
                f"[speculation] draft_length = {self.speculation.draft_length} is above {longest}, "
                "which is [export] max_verify - 1; lower it or raise max_verify"
            )
        return self


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read and check a config; `path` may be the name of a shipped one.

    Args:
        overrides: "section.key=value"; the value is read as TOML, or as a string where it is none.

    Raises:
        ConfigError: no such file, not TOML (with line and column), an unknown key (with the
            nearest known one), a value of the wrong type or outside its range.
    """
    file = find(path)
    try:
        data = _toml(file.read_bytes().decode("utf-8").removeprefix("\ufeff"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    overridden = {_override(data, item) for item in overrides}
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [_explain(str(path), detail, overridden) for detail in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def _toml(text: str) -> dict[str, Any]:
    """Raises ValueError for whatever is wrong, whether the parser has a word for it or not."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None


def _override(data: dict[str, Any], item: str) -> str:
    """Apply one `--set`; returns the dotted key."""
    key, equals, text = item.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        raise ConfigError(
            f"--set {item:.80}: expected section.key=value, as in export.context=4096"
        )
    try:
        value = _toml(f"value = {text}")
        typed = value["value"] if len(value) == 1 else text
    except ValueError:
        typed = text.strip()
    table = data
    for part in keys[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {item:.80}: {part!r} is a value, not a section")
    table[keys[-1]] = typed
    return ".".join(keys)


def _explain(path: str, detail: ErrorDetails, overridden: set[str]) -> str:
    """One line for one finding."""
    keys = [str(part) for part in detail["loc"]]
    nested = bool(keys) and keys[0] in _SECTIONS
    section = f"[{keys[0]}] " if nested and len(keys) > 1 else ""
    key = ".".join(keys[1:]) if section else ".".join(keys)
    where = f"--set {'.'.join(keys)}" if ".".join(keys) in overridden else path
    context = detail.get("ctx", {})
    found = shown(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            fields = _SECTIONS[keys[0]] if section else Config
            return f"{where}: {section}{_unknown(key, fields)}"
        case "missing":
            return f"{where}: {section}needs {key!r}"
        case "value_error":
            reason = str(context["error"])
            is_table = isinstance(detail["input"], dict)
            if is_table:
                return f"{where}: {f'[{key}] ' if key else ''}{reason}"
            return f"{where}: {section}{key} = {found}: {reason}"
        case "literal_error":
            return f"{where}: {section}{key} = {found}: expected {context['expected']}"
        case "model_type" | "model_attributes_type":
            return f"{where}: {key} = {found}: expected a section, as in [{key}]"
        case _:
            expected = detail["msg"][:1].lower() + detail["msg"][1:]
            return f"{where}: {section}{key} = {found}: {expected}"


def _unknown(key: str, section: type[BaseModel]) -> str:
    known = list(section.model_fields)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"unknown key {key!r}{hint} (known: {', '.join(known)})"


_SECTIONS: dict[str, type[BaseModel]] = {
    "target": ModelConfig,
    "draft": ModelConfig,
    "export": ExportConfig,
    "speculation": SpeculationConfig,
    "generation": GenerationConfig,
}
