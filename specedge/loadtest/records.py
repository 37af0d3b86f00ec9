"""What a benchmark keeps: every request and every round, beside what they were measured on.

    FOLDER/bench.json       Header
    FOLDER/requests.jsonl   RequestRecord, a line each, in the order they ended
    FOLDER/rounds.jsonl     RoundRecord, a line each

Percentiles, intervals, tables, plots and comparisons are made from these and nothing else. Times
are seconds from the beginning of the run (a pass of one way over the whole load) or milliseconds,
as the name says.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)

SCHEMA = 1
HEADER, REQUESTS, ROUNDS = "bench.json", "requests.jsonl", "rounds.jsonl"

_MOST = 1e15  # of anything: what is larger was not measured, and sums would not be finite

Count = Annotated[int, Field(ge=0, le=_MOST)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ms = Annotated[float, Field(ge=0, le=_MOST, allow_inf_nan=False)]
Seconds = Ms


def _encodable(text: object) -> object:
    """A path may be no UTF-8; its surrogates become "?"."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


Said = Annotated[str, BeforeValidator(_encodable)]
"""Text that may name files."""


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Load(_Kept):
    """How requests arrive at one point of the benchmark.

    Args:
        kind: "closed": `concurrency` clients, each with one request at a time; "poisson": `rate`
            requests a second; "trace": at recorded times.
        concurrency: of "closed".
        rate: of "poisson"; of a trace its mean.
    """

    kind: Literal["closed", "poisson", "trace"]
    concurrency: Count | None = None
    rate: Rate | None = None

    @property
    def name(self) -> str:
        """ "1 client", "4 clients", "0.5 requests/s", "trace"."""
        if self.kind == "closed":
            return f"{self.concurrency} client{'' if self.concurrency == 1 else 's'}"
        if self.kind == "poisson":
            return f"{self.rate:g} request{'' if self.rate == 1 else 's'}/s"
        return "trace"


class RequestRecord(_Kept):
    """One request, served or failed.

    Args:
        way: `Way.name`: "plain", "auto", "ngram K=3".
        load: index into `Header.loads`.
        repeat: which repetition, from 0; ways take turns within one.
        number: place in the load, from 0; the same number is the same prompt in every way.
        prompt, workload: `Asked.name` and its class.
        arrived_s, began_s, first_s, ended_s: arrival, engine begun, first token, last token; first
            is None where there was none.
        prompt_tokens, tokens: ids of prompt and output.
        output: hash of the output's ids, so that equality can be checked.
        failure: the error in one line; None: it was served.
        prefill_ms: the engine's, of prompt rows that were not cached.
        rounds: target calls after the prefill.
        propose_ms, verify_ms, accept_ms, other_ms: see `MetricsSummary`.
        proposed_by_position, accepted_by_position: see `MetricsSummary`.
        on: speculation at the end of the request, and
        reason: why, in one line.
    """

    way: str
    load: Count
    repeat: Count
    number: Count
    prompt: str
    workload: str
    arrived_s: Seconds
    began_s: Seconds
    first_s: Seconds | None
    ended_s: Seconds
    prompt_tokens: Count
    tokens: Count
    output: str
    failure: Said | None = None
    prefill_ms: Ms = 0.0
    rounds: Count = 0
    propose_ms: Ms = 0.0
    verify_ms: Ms = 0.0
    accept_ms: Ms = 0.0
    other_ms: Annotated[float, Field(ge=-_MOST, le=_MOST)] = 0.0
    proposed_by_position: list[Count] = []
    accepted_by_position: list[Count] = []
    on: StrictBool = False
    reason: str = ""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        first_s = self.ended_s if self.first_s is None else self.first_s
        if not self.arrived_s <= self.began_s <= first_s <= self.ended_s:
            raise ValueError("times are out of order")
        if len(self.proposed_by_position) != len(self.accepted_by_position):
            raise ValueError("drafted and accepted tokens have other positions")
        return self

    @property
    def queued_ms(self) -> float:
        """Waiting for the engine."""
        return (self.began_s - self.arrived_s) * 1e3

    @property
    def ttft_ms(self) -> float | None:
        """From arrival to the first token: queueing is in it."""
        return None if self.first_s is None else (self.first_s - self.arrived_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Mean time from one token to the next after the first."""
        if self.first_s is None or self.tokens < 2:
            return None
        return (self.ended_s - self.first_s) * 1e3 / (self.tokens - 1)

    @property
    def e2e_ms(self) -> float:
        """From arrival to the last token."""
        return (self.ended_s - self.arrived_s) * 1e3


class RoundRecord(_Kept):
    """One round of one request, which `way`, `load`, `repeat` and `number` name."""

    way: str
    load: Count
    repeat: Count
    number: Count
    round: Count
    past: Count
    proposer: str | None
    drafted: Count
    accepted: Count
    committed: Count
    ms: Ms
    draft_ms: Ms


class Header(_Kept):
    """What was measured, on what, and how.

    Args:
        created: UTC, ISO 8601.
        bundle, bundle_hash: name and content of what was run.
        command: the exact command line.
        versions: of specedge, Python and what computes.
        fingerprint: see `specedge.probe.fingerprint`.
        ways: names, in the order they took turns; "plain" is the baseline.
        loads: by index.
        repeats: how often everything was done, warm-up not counted.
        warmup: requests of each way that were made before and left out.
        max_tokens: output limit of every request.
        options: sampling and other options of every request, as given.
        prompts: where they come from: "built in", or name and hash of a file or a trace.
        peak_rss_bytes: of the process, by way (largest so far when the way's last pass ended).
        notes: what a reader must know, a line each.
        complete: False where the run was interrupted: what there is still counts.
    """

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA
    created: str
    bundle: str
    bundle_hash: str
    command: Said
    versions: dict[str, str]
    fingerprint: dict[str, StrictStr | StrictInt | StrictBool | None]
    ways: list[str]
    loads: list[Load]
    repeats: Count
    warmup: Count
    max_tokens: Count
    options: dict[str, str | int | float | bool | None] = {}
    prompts: Said = "built in"
    peak_rss_bytes: dict[str, Count] = {}
    notes: list[Said] = []
    complete: StrictBool = True
