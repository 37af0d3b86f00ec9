"""The memory plan: what a run needs, worked out before anything large is built or loaded.

    total = weights(target) + KV(target) + weights(draft) + KV(draft) + activations

Weights of a draft that shares the target's file count once. KV is `GraphSpec.kv_bytes`.
Activations are those of the widest call of the larger model; engines take turns, so only one
model's are alive. With S = max(max_verify, PREFILL_CHUNK) new tokens and M = max_verify scored
rows, in float32 (hidden, attention and MLP in the graph's own type):

    logits       M * V                    lowering "concat" scores every row: S * V
    hidden       2 * S * hidden               a block's input and its normed copy
    attention    S * (2 * heads + 2 * kv_heads) * D        q, k, v and the attended values
    scores       heads * S * T                GQA keeps one probability per head, row and position;
                                              lowering "concat" has them masked and unmasked: twice
    MLP          3 * S * I                    gate, up and their product
    sampling     2 * M * V                    weights of K + 1 scored and K drafted rows, and one
                                              more being edited: 2K + 2 = 2M; the target's V

Sampling counts whether or not a request samples; penalties and biases keep edited rows too, about
as much again, which is outside the plan.
I, the width of the MLP, is not in the manifest. It is bounded from the number of parameters, as
if the head were tied to the embedding; an untied head therefore counts somewhat too much.
The Python process, the runtime's own code (together about 150 MiB) and the page cache that a
weights file passes through are outside the plan.

At load the same plan is held against a budget, or against what is available where the models
compute: the host's memory, or the GPU's, or the target in one and the draft in the other (`fit`).
A weight is counted once and as memory that cannot be taken back. On CPU the runtime maps the file
and packs most of it into memory of its own; what it leaves mapped (an embedding) the system could
drop and read again, at the price of a stalled step. Context is counted in full, although rows of
KV that were never written take none. Weights in float16 count twice on the host: the runtime's
kernels there multiply in float32, and it widens the weights when it loads them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from specedge.contract import GraphSpec, Manifest, MemoryPlan
from specedge.errors import ConfigError, MemoryBudgetError, OptionError

PREFILL_CHUNK = 128  # widest call of an engine, but for a verification
CONTEXT_STEP = 64  # a proposed context is rounded down to a multiple of this
MIN_CONTEXT = 16
RESERVE = 64 << 20  # of what is available, left for what the plan does not count
DEVICE_RESERVE = 448 << 20  # the same on a GPU, beside it: a CUDA context and libraries' workspaces
_FLOAT = 4

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Bytes of "6GiB", "2GB", "1.5 gib" or a plain number of bytes, at least 1.

    Raises:
        ConfigError: not a size, an unknown unit, or nothing left after rounding down.
    """
    match = _SIZE.fullmatch(str(text))
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{text!r} is not a size; write for example 6GiB, 512MiB, 2GB or bytes")
    size = float(match[1]) * unit
    if size >= 1 << 63:
        raise ConfigError(f"{str(text)[:40]!r} is more than any memory holds")
    if size < 1:
        raise ConfigError(f"{text!r} is not a size above zero")
    return int(size)


def checked_memory(asked: str | int | None) -> int | None:
    """Bytes of the `memory` of a load; None where nothing was asked for.

    Raises:
        OptionError: as `parse_size`.
    """
    if asked is None:
        return None
    try:
        return parse_size(asked)
    except ConfigError as error:
        raise OptionError(f"memory: {error}") from error


def format_size(size: int, *, up: bool = False) -> str:
    """A size for people: "86.0 MiB"; `up` rounds up, so that reading it back is no less."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{_tenths(value, up):.1f} {unit}"
        value /= 1024
    return f"{_tenths(value, up):.1f} TiB"


def _tenths(value: float, up: bool) -> float:
    return math.ceil(value * 10) / 10 if up else value


def mlp_width(spec: GraphSpec) -> int:
    """Upper bound of I, the MLP's width, from the parameter count."""
    attention = spec.hidden * spec.head_dim * (2 * spec.heads + 2 * spec.kv_heads)
    rest = spec.parameters - spec.vocab * spec.hidden - spec.layers * attention
    return max(spec.hidden, rest // (3 * spec.layers * spec.hidden))


def activation_bytes(spec: GraphSpec, context: int, max_verify: int) -> int:
    """Bytes of the widest call over a full cache of `context` rows (T); formula at the top."""
    width = min(context, max(max_verify, PREFILL_CHUNK))
    logits = (width if spec.lowering == "concat" else max_verify) * spec.vocab
    hidden = 2 * width * spec.hidden
    attention = width * (2 * spec.heads + 2 * spec.kv_heads) * spec.head_dim
    scores = (2 if spec.lowering == "concat" else 1) * spec.heads * width * context
    mlp = 3 * width * mlp_width(spec)
    return _FLOAT * (logits + scores) + spec.element_bytes * (hidden + attention + mlp)


def host_weight_bytes(spec: GraphSpec) -> int:
    """Bytes of weights where the host computes; see the top."""
    return spec.weight_bytes * (2 if spec.precision == "fp16" else 1)


def sampling_bytes(vocab: int, max_verify: int) -> int:
    """Bytes that drawing tokens keeps for a round; formula at the top."""
    return _FLOAT * 2 * max_verify * vocab


def plan(
    target: GraphSpec,
    draft: GraphSpec | None,
    *,
    context: int,
    max_verify: int,
    budget: int | None = None,
    hosted: bool = False,
) -> MemoryPlan:
    """Work out the plan, and hold it against `budget` bytes where there is one.

    Args:
        target, draft: sizes of the graphs; their own `context` bounds nothing but the draft's KV.
        context: T, rows of the target's KV buffer.
        max_verify: M, widest verification.
        hosted: the host is known to compute.

    Raises:
        MemoryBudgetError: over budget; names the largest context that fits, or says that none
            does and what the weights alone take.
    """
    made = _plan(target, draft, context, max_verify, budget, (hosted, hosted))
    if budget is None or made.total <= budget:
        return made
    fits = largest_context(
        target, draft, max_verify=max_verify, budget=budget, below=context, hosted=hosted
    )
    needs = (
        f"context {context} needs {format_size(made.total)} "
        f"(weights {format_size(made.target_weights + made.draft_weights)}, "
        f"KV {format_size(made.target_kv + made.draft_kv)}, "
        f"activations {format_size(made.activations)}), the budget is {format_size(budget)}"
    )
    if fits is not None:
        raise MemoryBudgetError(f"{needs}; the largest context that fits is {fits}")
    remedy = "use a smaller model or precision" + (", or leave [draft] out" if draft else "")
    raise MemoryBudgetError(f"{needs}; no context fits: {remedy}, or raise the budget")


def largest_context(
    target: GraphSpec,
    draft: GraphSpec | None,
    *,
    max_verify: int,
    budget: int,
    below: int,
    hosted: bool = False,
) -> int | None:
    """Largest multiple of CONTEXT_STEP under `below` (or MIN_CONTEXT) that fits, or None."""

    def total(context: int) -> int:
        return _plan(target, draft, context, max_verify, budget, (hosted, hosted)).total

    low, high = 0, (below - 1) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if total(middle * CONTEXT_STEP) <= budget:
            low = middle
        else:
            high = middle - 1
    for candidate in (low * CONTEXT_STEP, MIN_CONTEXT):
        if max_verify <= candidate < below:
            return candidate if total(candidate) <= budget else None
    return None


def _plan(
    target: GraphSpec,
    draft: GraphSpec | None,
    context: int,
    max_verify: int,
    budget: int | None,
    hosted: tuple[bool, bool],  # target, draft
) -> MemoryPlan:
    target_weights = host_weight_bytes(target) if hosted[0] else target.weight_bytes
    activations = activation_bytes(target, context, max_verify)
    draft_weights = draft_kv = 0
    if draft is not None:
        draft_context = min(context, draft.context)
        if draft.weights != target.weights:
            draft_weights = host_weight_bytes(draft) if hosted[1] else draft.weight_bytes
        draft_kv = draft.kv_bytes(draft_context)
        activations = max(activations, activation_bytes(draft, draft_context, 1))
    activations += sampling_bytes(target.vocab, max_verify)
    target_kv = target.kv_bytes(context)
    return MemoryPlan(
        context=context,
        max_verify=max_verify,
        target_weights=target_weights,
        target_kv=target_kv,
        draft_weights=draft_weights,
        draft_kv=draft_kv,
        activations=activations,
        total=target_weights + target_kv + draft_weights + draft_kv + activations,
        budget=budget,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that is left where the models compute, estimates.

    Args:
        available: bytes that the target may take, and the draft beside it; None: unknown.
        where: "on the GPU"; empty: on the host.
        apart: the draft computes elsewhere, in memory of its own.
        draft_available: bytes that it may take there; None: unknown.
        draft_where: as `where`.
    """

    available: int | None
    where: str = ""
    apart: bool = False
    draft_available: int | None = None
    draft_where: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """What can be loaded.

    Args:
        plan: of what is kept.
        keeps_draft: the draft model is in it; False too where none was wanted.
        note: in one line what was left out, or may go wrong; empty when there is nothing to say.
    """

    plan: MemoryPlan
    keeps_draft: bool
    note: str


def fit(
    manifest: Manifest,
    context: int,
    *,
    budget: int | None,
    room: Room,
    wants_draft: bool,
    lookups: bool,
    insists: bool = False,
    may_rest: bool = True,
) -> Fit:
    """Leave the draft model out where it does not fit.

    Args:
        manifest: of the bundle.
        context: T, rows of KV that will be allocated.
        budget: bytes that must not be passed, on all devices together; None: `room` decides.
        room: not looked at beside a budget. RESERVE of it is kept back.
        wants_draft: somebody would draft with the model, if there is one.
        lookups: proposers that need no model remain without it.
        insists: speculation is "on".
        may_rest: it could be "auto" as well, for an error to say so.

    Raises:
        MemoryBudgetError: the target alone passes the budget, by name of the largest context that
            fits; or the draft does not fit and without it nobody is left to draft, who must. An
            estimate alone refuses no target: it may be wrong, and the load will tell.
    """
    target, draft = manifest.target, manifest.draft if wants_draft else None
    hosted = not room.where
    draft_hosted = not (room.draft_where if room.apart else room.where)
    widest = target.max_verify
    alone = plan(target, None, context=context, max_verify=widest, budget=budget, hosted=hosted)
    both = _plan(target, draft, context, widest, budget, (hosted, draft_hosted))
    apart = room.apart and budget is None and draft is not None
    left = _left(room.available) if budget is None else budget
    here, there = (f" {place}" if place else "" for place in (room.where, room.draft_where))
    needed, had = both.total, left
    if apart and draft is not None:
        needed, had = _draft_bytes(draft, context, draft_hosted), _left(room.draft_available)
    keeps = draft is not None and (had is None or needed <= had)
    kept = both if keeps else alone
    notes = []
    if draft is not None and not keeps and had is not None:
        said = f"{format_size(had)} are available{there if apart else here}"
        if budget is not None:
            said = f"the limit is {format_size(had)}"
        subject = "by itself it" if apart else "with it a run"
        without = "" if apart else f"; without it {format_size(alone.total)}"
        notes.append(
            f"the draft model was left out: {subject} needs {format_size(needed)}, {said}{without}"
            f"; {'lookups still draft' if lookups else 'nothing is left to draft'}"
        )
        if insists and not lookups:
            auto = 'use "auto", ' if may_rest else ""
            raise MemoryBudgetError(
                f'speculation "on": a run with the draft model needs {format_size(needed)}, '
                f'{said}; {auto}add "ngram" to the proposers, choose a smaller context, or '
                f"allow more with memory={format_size(both.total, up=True)!r}"
            )
    # a draft of the target's own device that is kept was counted with it
    if left is not None and alone.total > left:
        notes.append(_may_not_fit(target, alone, left, context, here))
    return Fit(kept, keeps, "; ".join(notes))


def _left(available: int | None) -> int | None:
    return None if available is None else max(0, available - RESERVE)


def _draft_bytes(draft: GraphSpec, context: int, hosted: bool) -> int:
    """What a draft takes that computes apart from its target; it brings its own weights there."""
    rows = min(context, draft.context)
    weights = host_weight_bytes(draft) if hosted else draft.weight_bytes
    return weights + draft.kv_bytes(rows) + activation_bytes(draft, rows, 1)


def _may_not_fit(target: GraphSpec, alone: MemoryPlan, left: int, context: int, here: str) -> str:
    widest = target.max_verify
    fits = largest_context(
        target, None, max_verify=widest, budget=left, below=context, hosted=not here
    )
    remedy = f"a context of {fits} would fit" if fits else "no smaller context would fit either"
    return (
        f"memory may not suffice: a run needs {format_size(alone.total)} at a context of {context},"
        f" {format_size(left)} are available{here}; {remedy}"
    )
