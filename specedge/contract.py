"""Contract 1: what every graph takes and gives, and what a bundle's manifest says.

`export` writes graphs to this contract, `engines` run them, and neither imports the other.

Letters: B sequences, S new tokens, M scored rows, K draft, V vocabulary, L layers,
H_kv key/value heads, D head width, T context.

inputs
    input_ids        int64 [B, S]        prefill chunk, or last committed token + K drafted ones
    cached_lengths   int32 [B]           rows before it are valid
    total_length     int32 []            max(cached_lengths) + S, on the host; lowering "ort" only
    logit_rows       int64 [M]           indices into the flattened B*S rows that reach the head
    past.{l}.key     kv_dtype [B, H_kv, T, D]
    past.{l}.value   kv_dtype [B, H_kv, T, D]
outputs
    logits           float32 [M, V]
    greedy_ids       int64 [M]           argmax of a row; ties go to the lowest id
    greedy_logits    float32 [M]         the logit of each greedy id, so that logits which stay on
                                         a device can be checked for NaN; older graphs lack it
    present.{l}.key / present.{l}.value  bound to the buffers of past.{l}.*: nothing is copied
    hidden.{n}       kv_dtype [B, S, H]  what layer n takes, L what the last norm takes; for each n
                                         of `GraphSpec.taps`

V counts the ids that the tokenizer knows: a padded tail of the checkpoint's vocabulary is cut
at export, so a padded id can neither be proposed nor accepted (docs/decisions/0001).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specedge import limits

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

CONTRACT = 1
SCHEMA = 1
MANIFEST = "specedge.json"

INPUT_IDS = "input_ids"
CACHED_LENGTHS = "cached_lengths"
TOTAL_LENGTH = "total_length"
LOGIT_ROWS = "logit_rows"
LOGITS = "logits"
GREEDY_IDS = "greedy_ids"
GREEDY_LOGITS = "greedy_logits"

WIDEST_STEP = 8  # an engine may pad the width of a call to a multiple of at most this

# Ranges of a manifest's numbers: what passes can be multiplied and allocated without a surprise.
Size = Annotated[int, Field(ge=1, lt=1 << 31)]
Layers = Annotated[int, Field(ge=1, le=4096)]
Id = Annotated[int, Field(ge=0, lt=1 << 31)]
Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]


def _temperature(value: float) -> float:
    if 0 < value < limits.MIN_TEMPERATURE:
        raise ValueError(f"expected 0 (greedy) or at least {limits.MIN_TEMPERATURE:g}")
    return value


# Defaults of a request, in a config as in a manifest.
Temperature = Annotated[
    float,
    Field(ge=0.0, le=limits.MAX_TEMPERATURE, allow_inf_nan=False),
    AfterValidator(_temperature),
]
TopK = Annotated[int, Field(ge=-1, le=limits.MAX_TOP_K)]  # -1, as 0: all
TopP = Annotated[float, Field(gt=limits.MIN_TOP_P, le=limits.MAX_TOP_P, allow_inf_nan=False)]
MinP = Annotated[float, Field(ge=limits.MIN_MIN_P, le=limits.MAX_MIN_P, allow_inf_nan=False)]
Repetition = Annotated[
    float, Field(ge=limits.MIN_REPETITION, le=limits.MAX_REPETITION, allow_inf_nan=False)
]
Penalty = Annotated[float, Field(ge=limits.MIN_PENALTY, le=limits.MAX_PENALTY, allow_inf_nan=False)]
MinTokens = Annotated[int, Field(ge=0, le=limits.MAX_ID)]
DefaultAcceptance = Literal["auto", "rejection", "block", "coupled"]

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]  # of weights
Lowering = Literal["ort", "standard", "concat"]
"""What a graph is made of.

ort       ONNX Runtime's fused operators
standard  operators of the ONNX standard alone (opset 24): ONNX Runtime, TensorRT, TensorRT-RTX
concat    contract "concat": another exporter's graph, KV grows by concatenation (engines/concat)
"""
Element = Literal["float32", "float16", "bfloat16"]
"""Of hidden states and KV; norms, softmax and logits are float32 whatever it is."""

EngineOptions = dict[str, str | int | float | bool]
"""What the config's [engines.NAME] says to a runtime, in the runtime's own words."""


def past(layer: int, part: Literal["key", "value"]) -> str:
    """Name of a layer's KV input."""
    return f"past.{layer}.{part}"


def present(layer: int, part: Literal["key", "value"]) -> str:
    """Name of the output that is bound to the same buffer as `past`."""
    return f"present.{layer}.{part}"


def rope_rows(context: int) -> int:
    """Rows of the rotary tables for a context of T: more than T, so that an engine may pad a call
    of one token to WIDEST_STEP at the last position."""
    return context + WIDEST_STEP - 1


def tap(layer: int) -> str:
    """Name of the output that taps what a layer takes."""
    return f"hidden.{layer}"


Margin = Annotated[float, Field(ge=limits.MIN_MARGIN, le=limits.MAX_MARGIN)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class GraphSpec(_Model):
    """One graph of a bundle: where it lies and the sizes an engine must allocate."""

    role: Literal["target", "draft"]
    model: str  # path of the .onnx inside the bundle; the draft may point at the target's
    weights: str  # external data beside it
    model_type: str  # family, as the checkpoint names it
    lowering: Lowering
    precision: Precision
    block_size: Size | None = None  # of int4 / int8 weights
    vocab: Size  # V
    layers: Layers  # L
    hidden: Size
    heads: Size
    kv_heads: Size  # H_kv
    head_dim: Size  # D
    kv_dtype: Element = "float32"  # of hidden states too; `standard` adds them up in float32
    context: Size  # T, rows of the KV buffer; also bounds the rotary tables
    max_verify: Size  # widest verification the memory plan allows for: K + 1 <= max_verify
    taps: list[Annotated[int, Field(ge=0, le=4096)]] = []  # hidden.{n} among the outputs
    weight_bytes: Bytes  # of `weights`
    parameters: Bytes

    def kv_bytes(self, context: int | None = None) -> int:
        """Bytes of one sequence's keys and values at `context` rows (default: the whole T).

        KV that grows by concatenation is there twice: what a call reads and what it writes.
        """
        rows = self.context if context is None else context
        times = 2 if self.lowering == "concat" else 1
        values = 2 * self.layers * self.kv_heads * rows * self.head_dim
        return times * values * self.element_bytes

    @property
    def element_bytes(self) -> int:
        """Bytes of one value of KV or of a hidden state."""
        return 4 if self.kv_dtype == "float32" else 2


class TokenizerSpec(_Model):
    """What pairing compared and what decoding needs to know about the tokenizer."""

    vocab: Size  # ids 0..vocab-1; equals GraphSpec.vocab
    vocabulary_hash: str  # sha256 over "id<TAB>token bytes<NEWLINE>" in id order
    bos_id: Id | None
    eos_ids: list[Id]  # all ids that end a generation
    pad_id: Id | None
    adds_bos: bool  # encoding a plain prompt starts with bos_id
    has_chat_template: bool


class SourceRecord(_Model):
    """Where weights came from, for the person who must answer for them."""

    kind: Literal["folder", "gguf", "package", "hub"]
    reference: str  # as written in the config, without paths of the exporting machine
    sha256: str | None  # of the single weights file, or of the joined parts
    licence: str | None
    licence_note: str | None = None


class PairingProof(_Model):
    """Why the draft may propose for the target (or why there is no draft)."""

    usable: bool
    compared_ids: int
    first_difference: int | None = None
    target_padded_to: int  # rows of the checkpoint's embedding, before the padded tail was cut
    draft_padded_to: int
    notes: list[str] = []


class MemoryPlan(_Model):
    """Bytes that a run needs; `total` is what a budget is compared with."""

    context: int
    max_verify: int
    target_weights: int
    target_kv: int
    draft_weights: int
    draft_kv: int
    activations: int
    total: int
    budget: int | None = None


class QualityRecord(_Model):
    """Error of quantised weights against float32 arithmetic over the same checkpoint.

    `kl`: mean KL(fp32 || quantised) in nats over the positions of a text, where both models fit.
    `layerwise`: relative error of block outputs, where they do not.
    """

    method: Literal["kl", "layerwise"]
    value: float
    positions: int
    rounding: str
    detail: dict[str, float] = {}


class SpeculationDefaults(_Model):
    """The config's [speculation], carried along so that `run` needs the bundle only."""

    mode: Literal["auto", "on", "off"] = "auto"
    proposers: list[str] = ["ngram", "draft"]
    draft_length: Annotated[int, Field(ge=0)] = 4
    ngram_min: Size = 2
    ngram_max: Size = 6
    acceptance: DefaultAcceptance = "auto"
    margin: Margin = limits.MARGIN


class SamplingDefaults(_Model):
    """What a config and a manifest say of sampling; neutral where they say nothing."""

    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    repetition_penalty: Repetition = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    min_tokens: MinTokens = 0


class GenerationDefaults(SamplingDefaults):
    """The config's [generation]."""

    max_tokens: Size = 512


class FileRecord(_Model):
    """One file of the bundle."""

    sha256: str
    bytes: Bytes


class Manifest(_Model):
    """`specedge.json`."""

    schema_version: int = SCHEMA
    contract: int = CONTRACT
    name: str
    created: str  # UTC, ISO 8601
    tool: dict[str, str]  # specedge and the libraries that wrote the graphs, by version
    target: GraphSpec
    draft: GraphSpec | None = None
    tokenizer: TokenizerSpec
    sources: dict[str, SourceRecord]  # by role
    pairing: PairingProof | None = None
    memory: MemoryPlan
    quality: dict[str, QualityRecord] = {}  # by role
    speculation: SpeculationDefaults = SpeculationDefaults()
    generation: GenerationDefaults = GenerationDefaults()
    engines: dict[str, EngineOptions] = {}  # by name of the engine
    files: dict[str, FileRecord]  # everything but specedge.json itself
    notes: list[str] = []
    extra: dict[str, Any] = {}
