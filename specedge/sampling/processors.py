"""One row of logits to a distribution, the same for target and draft.

The order of effect, each with its source:

repetition penalty   Keskar et al., 2019, "CTRL": logits of tokens so far divided where positive
frequency, presence  OpenAI API: count of the token in the output, and whether it is there
logit bias           OpenAI API: added to the logit
banned tokens        never chosen
minimum length       ids that end a generation are not chosen before `min_tokens` output tokens
grammar              ids that structured output does not allow here are not chosen
temperature          Ackley et al., 1985; 0: the likeliest token, always
top-k, top-p, min-p  `specedge.sampling.narrowing`

Each of the first five rounds to float32, the type of the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NoReturn

import numpy as np

from specedge.contract import Ids, Logits
from specedge.errors import DeadEndError, SamplingError
from specedge.sampling.constraint import Constraint, Mask
from specedge.sampling.history import History
from specedge.sampling.law import Law
from specedge.sampling.narrowing import narrow
from specedge.sampling.params import SamplingParams
from specedge.sampling.scratch import Scratch

Edit = Callable[[Logits, History | None, int], None]
"""(row to change, tokens so far, output tokens so far) → changed in place."""

STEEPEST = 1e200
"""Largest 1 / temperature. Two different float32 are 1e-45 apart at least, so the weights of all
but the largest are 0 with this already, and no product overflows."""


class Pipeline:
    """The processors that a request asked for.

    Args:
        params: what the request asks for, checked.
        vocab: V; ids in `params` are below it.
        end_ids: ids that end a generation; those not below V are left out.
        constraint: at the place of the row that is made a law; None: there is none.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab: int,
        end_ids: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self._constraint = constraint
        self._vocab = vocab
        self._temperature = params.temperature
        self._scale = min(1 / params.temperature, STEEPEST) if params.temperature else STEEPEST
        self._top_k = params.top_k if params.top_k < vocab else 0
        self._top_p = params.top_p
        self._min_p = params.min_p
        self._narrows = bool(self._top_k) or params.top_p < 1 or params.min_p > 0
        self._end_ids = np.array(sorted(i for i in set(end_ids) if i < vocab), np.int64)
        self._min_tokens = params.min_tokens if len(self._end_ids) else 0
        self._edits = self._chosen_edits(params)

    @property
    def plain_scale(self) -> float | None:
        """1 / temperature, where that is all that is done to any row; None: there is more, or the
        temperature is 0."""
        more = self._narrows or self._edits or self._min_tokens or self._constraint is not None
        return None if more or self._temperature == 0 else self._scale

    def _chosen_edits(self, params: SamplingParams) -> list[tuple[str, Edit]]:
        """Name and function of those before the temperature, but for the minimum length."""
        edits: list[tuple[str, Edit]] = []
        if params.repetition_penalty != 1:
            edits.append(("repetition_penalty", _repetition(params.repetition_penalty)))
        if params.frequency_penalty:
            edits.append(("frequency_penalty", _frequency(params.frequency_penalty)))
        if params.presence_penalty:
            edits.append(("presence_penalty", _presence(params.presence_penalty)))
        if params.logit_bias:
            edits.append(("logit_bias", _bias(params.logit_bias)))
        if params.banned_tokens:
            edits.append(("banned_tokens", _ban(np.array(params.banned_tokens, np.int64))))
        return edits

    def _edits_now(self, n_generated: int) -> list[tuple[str, Edit]]:
        edits = self._edits
        if n_generated < self._min_tokens:
            edits = [*edits, ("min_tokens", _ban(self._end_ids))]
        mask = None if self._constraint is None else self._constraint.mask()
        return edits if mask is None else [*edits, ("structured output", _only(mask))]

    def edited(
        self, row: Logits, history: History | None, n_generated: int, scratch: Scratch
    ) -> Logits:
        """What the temperature applies to: float32 [V]; `row` itself where nothing is edited."""
        if not self._edits_now(n_generated):
            return row
        return self._edit(row, history, n_generated, scratch.singles(len(row)))

    def _edit(self, row: Logits, history: History | None, n_generated: int, out: Logits) -> Logits:
        np.copyto(out, row)
        with np.errstate(over="ignore"):  # an infinity is looked for in the result
            for _, edit in self._edits_now(n_generated):
                edit(out, history, n_generated)
        return out

    def law(
        self,
        row: Logits,
        history: History | None,
        n_generated: int,
        *,
        scratch: Scratch,
        where: str,
        position: int,
    ) -> Law:
        """The distribution that the next token is drawn from.

        Args:
            row: float32 [V]; only read. The law may look at it later.
            history: tokens before the one to be drawn; None if `params.uses_history` is not set.
            n_generated: output tokens before it.
            scratch: gives the buffers that the law keeps until the next `reset`.
            where: "target" or "draft", and
            position: of the token in the sequence; both for messages.

        Raises:
            SamplingError: the row has NaN or +inf, before or after a processor, or no token is
                left with a finite logit.
        """
        certain = self._temperature == 0
        edited = row
        if self._edits_now(n_generated):
            if not row.max() < math.inf:
                self._refuse(row, history, n_generated, where, position)
            copied = certain or self._narrows  # the law does not keep the row
            out = (
                scratch.work(np.float32, len(row), "edited")
                if copied
                else scratch.singles(len(row))
            )
            edited = self._edit(row, history, n_generated, out)
        token = int(edited.argmax()) if certain else 0
        top = edited.item(token) if certain else float(edited.max())
        if not math.isfinite(top):
            self._refuse(row, history, n_generated, where, position)
        if certain:
            return Law.certain(token)
        if not self._narrows:
            return Law(None, edited, self._scale, top=top, buffers=scratch)
        ids = narrow(edited, top, self._scale, self._top_k, self._top_p, self._min_p, scratch)
        return Law(ids, edited[ids], self._scale, top=top)

    def _refuse(
        self, row: Logits, history: History | None, n_generated: int, where: str, position: int
    ) -> NoReturn:
        """Say which layer the value comes from: the edits are done again, one by one."""
        layer = ""
        out = row.copy()
        edits = iter(self._edits_now(n_generated))
        while math.isfinite(out.max()):
            name, edit = next(edits)
            layer = f"{name} on the "
            with np.errstate(over="ignore"):
                edit(out, history, n_generated)
        token = int(out.argmax())
        value = out.item(token)
        place = f"{layer}logits of the {where} at position {position}"
        if value == -math.inf:
            remedy = "leave one allowed" if layer else "export the model again in a wider type"
            kind = DeadEndError if layer else SamplingError
            raise kind(
                f"{place}: expected a token that can be chosen, found all {len(row)} at -inf; "
                f"{remedy}"
            )
        remedy = "use milder values" if layer else "export the model again in a wider type"
        raise SamplingError(
            f"{place}: expected finite numbers, found {value} for token {token}; {remedy}"
        )


def _tokens_so_far(history: History | None) -> History:
    assert history is not None, "penalties need the tokens so far"
    return history


def _repetition(penalty: float) -> Edit:
    def edit(row: Logits, history: History | None, n_generated: int) -> None:
        ids = _tokens_so_far(history).ids
        values = row[ids].astype(np.float64)
        row[ids] = np.where(values > 0, values / penalty, values * penalty)

    return edit


def _frequency(penalty: float) -> Edit:
    def edit(row: Logits, history: History | None, n_generated: int) -> None:
        so_far = _tokens_so_far(history)
        row[so_far.ids] = row[so_far.ids] - penalty * so_far.output_counts

    return edit


def _presence(penalty: float) -> Edit:
    def edit(row: Logits, history: History | None, n_generated: int) -> None:
        so_far = _tokens_so_far(history)
        row[so_far.ids] = row[so_far.ids] - penalty * (so_far.output_counts > 0)

    return edit


def _bias(biases: tuple[tuple[int, float], ...]) -> Edit:
    ids: Ids = np.array([token for token, _ in biases], np.int64)
    amounts = np.array([amount for _, amount in biases], np.float64)

    def edit(row: Logits, history: History | None, n_generated: int) -> None:
        row[ids] = row[ids] + amounts

    return edit


def _only(allowed: Mask) -> Edit:
    def edit(row: Logits, history: History | None, n_generated: int) -> None:
        np.copyto(row, -np.inf, where=~allowed)

    return edit


def _ban(ids: Ids) -> Edit:
    def edit(row: Logits, history: History | None, n_generated: int) -> None:
        row[ids] = -np.inf

    return edit
