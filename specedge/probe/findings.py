"""What a probe found out besides costs: how drafts stood on each workload, and what follows.

One `Finding` for each proposer on each workload class, never pooled over classes: editing gains
what chat loses. Gains are speeds over plain decoding once the draft has read the prompt; what the
reading costs is the controller's business, request by request.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Verdict = Literal["pays", "does not pay", "open"]
Gain = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(_Frozen):
    """A gain with its 90 % interval.

    Args:
        gain: speed over plain decoding, the ratio of summed times over the prompts.
        low, high: ends of the interval; None: too few prompts to state one.
        prompts: that it rests on.
        looks: how often the data were looked at, which the interval allows for.
    """

    gain: Gain
    low: Gain | None = None
    high: Gain | None = None
    prompts: Annotated[int, Field(ge=1)]
    looks: Annotated[int, Field(ge=1)] = 1


class Expected(_Frozen):
    """One K, replayed on texts that were decoded plainly, at the costs of the curves."""

    k: Annotated[int, Field(ge=1)]
    estimate: Estimate
    acceptance_rate: Annotated[float, Field(ge=0, le=1)]
    acceptance_length: Annotated[float, Field(ge=1)]  # tokens committed per round


class Finding(_Frozen):
    """One proposer on one workload class.

    Args:
        workload: class of the prompts.
        proposer: who drafted.
        tokens: of plain text that drafts were held against.
        reached, stood: by place in the draft, how many drafts came to it and how many stood there.
        expected: by K, rising; empty where nothing was ever drafted.
        best_k: K of the largest expected gain; 0: none gains.
        measured: live pairs at `best_k`; None: not run, because the expectation decided, or time
            ended.
        verdict: "open" leaves it to the controller.
        reason: one sentence.
    """

    workload: str
    proposer: str
    tokens: Count
    reached: tuple[Count, ...]
    stood: tuple[Count, ...]
    expected: tuple[Expected, ...]
    best_k: Count
    measured: Estimate | None
    verdict: Verdict
    reason: str

    @model_validator(mode="after")
    def _places(self) -> Finding:
        if len(self.reached) != len(self.stood):
            raise ValueError("expected as many places in reached as in stood")
        if any(stood > reached for stood, reached in zip(self.stood, self.reached, strict=True)):
            raise ValueError("more drafts stood than reached a place")
        return self

    @property
    def survival(self) -> tuple[float, ...]:
        """Chance that places 0..i all stand, by i; as far as any draft came.

        A product over places: drafts that the end of a text cut short never came to the later ones.
        """
        shares: list[float] = []
        alive = 1.0
        for reached, stood in zip(self.reached, self.stood, strict=True):
            if not reached:
                break
            alive *= stood / reached
            shares.append(alive)
        return tuple(shares)

    @property
    def best(self) -> Expected | None:
        """Of `expected` the one with `best_k`."""
        return next((each for each in self.expected if each.k == self.best_k), None)


class Energy(_Frozen):
    """Joules of one token of text, whole device or package, as the meter counts them.

    Args:
        source: which meter, for a person ("RAPL package-0").
        idle_watts: before anything ran; None: not read.
        plain: joules per token of plain decoding.
        speculative: of the paired speculative runs; None: there were none.
    """

    source: str
    idle_watts: Amount | None
    plain: Amount
    speculative: Amount | None


class Steadiness(_Frozen):
    """Whether the device stayed as fast as it was.

    Args:
        drift: T(1) at the end of the probe over T(1) at its beginning.
        throttled: what was seen of throttling or a changed power mode, a line each; empty: nothing.
        clocks_mhz: lowest and highest clock seen; None: unreadable.
    """

    drift: Gain
    throttled: tuple[str, ...] = ()
    clocks_mhz: tuple[float, float] | None = None


class Findings(_Frozen):
    """All that a probe decided, and why.

    Args:
        margin: gain under which speculation is not worth it.
        prompts_from: "built in", or the user's file by name and hash.
        workloads: names of all that were to be tried; time or context may have left none for some.
        findings: by workload, then proposer.
        proposers: those that may draft: not ruled out on every workload.
        reason: the decision in one sentence.
        texts_equal, texts_compared: live speculative runs that gave the plain run's tokens, of all.
        energy: None where no meter can be read.
        steadiness: of the machine meanwhile.
        seconds: calibration and pairs.
        complete: False where the budget ended it early.
    """

    margin: Annotated[float, Field(ge=1)]
    prompts_from: str
    workloads: tuple[str, ...] = ()
    findings: tuple[Finding, ...]
    proposers: tuple[str, ...]
    reason: str
    texts_equal: Count
    texts_compared: Count
    energy: Energy | None
    steadiness: Steadiness
    seconds: Amount
    complete: bool

    @property
    def speculates(self) -> bool:
        """Whether anybody may draft."""
        return bool(self.proposers)

    def of(self, proposer: str) -> tuple[Finding, ...]:
        """The findings of one proposer, by workload."""
        return tuple(each for each in self.findings if each.proposer == proposer)
