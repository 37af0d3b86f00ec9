"""One way to draft: a draft model, or a lookup with matches of one class of length.

An arm that does not pay rests, each time twice as long as the last, and is then tried again with
its old evidence forgotten. One that is heard to be right while it rests (a lookup costs nothing to
check against the text) wakes early, unless measured times and not the estimate sent it to rest.
"""

from __future__ import annotations

from math import inf

from specedge.policy.survival import Prior, Survival

FRESH_ROUNDS, FRESH_K = 1, 4  # the first draft of a lookup in a new text is no longer
HORIZON = 256  # tokens that a backlog is charged to at most: outputs end before their budget
OFTEN_GAIN = 1 / 96  # of the average of how often there is a match
FIRST_REST, LONGEST_REST = 64, 1024  # tokens of text
WINDOW = 64  # rounds that measured goodput is judged by
LOSS = 0.98  # measured goodput over plain at which a full window is a loss
PROVEN = 16  # rounds on, after which the next rest is short again


class Arm:
    """State of one way to draft; the policy decides, this remembers.

    Args:
        name: the proposer's.
        is_lookup: its drafts cost nothing to make.
        longest: largest K.
        prior: belief before the first round.
    """

    __slots__ = (
        "_backoff",
        "_measured",
        "_offers",
        "_plain_ms",
        "_rounds_on",
        "_spent_ms",
        "_tokens",
        "fresh",
        "heard",
        "is_lookup",
        "k",
        "measured_loss",
        "ms",
        "name",
        "often",
        "on",
        "prior",
        "rest_until",
        "resting",
        "survival",
        "switches",
        "text",
        "tokens",
        "vouched",
    )

    def __init__(self, name: str, is_lookup: bool, longest: int, prior: Prior) -> None:
        self.name = name
        self.is_lookup = is_lookup
        self.prior = prior
        self.survival = Survival(longest, prior)
        self.on = False  # believed to pay
        self.k = 0  # of its last round; hysteresis favours it
        self.fresh = 0  # drafts that are still to be short
        self.resting = False
        self.rest_until = 0
        self.measured_loss = False
        self.heard = False  # outcomes that cost nothing came in since the rest began
        self.vouched = False  # what is believed rests on some such outcomes
        self.switches = 0  # times it went on or off
        self.tokens, self.ms = 1.0, inf  # expected of a round of its last bid, at the curve's pace
        self.begin()
        self._backoff = FIRST_REST
        self._rounds_on = 0
        self._restart()

    def begin(self) -> None:
        """Another text: how often it has something to offer there is yet to be seen."""
        self.often = 1.0  # share of rounds in which it has something to offer
        self.text = 1.0  # share of the text at which it does
        self._offers = self._tokens = 1  # rounds and tokens that the two rest on

    def _restart(self) -> None:
        self._spent_ms = self._plain_ms = 0.0
        self._measured = 0

    def turn(self, on: bool) -> None:
        if self.on != on:
            self.on = on
            self.switches += 1
            self._rounds_on = 0

    def rest(self, now: int, *, measured_loss: bool = False) -> None:
        """Off until `now` + the back-off, which doubles."""
        self.turn(False)
        self.resting, self.measured_loss, self.heard = True, measured_loss, False
        self.rest_until = now + self._backoff
        self._backoff = min(2 * self._backoff, LONGEST_REST)
        self._restart()

    def wake(self) -> None:
        """End a rest; evidence from before it is forgotten unless newer came in since."""
        self.resting = self.measured_loss = False
        if not self.heard:
            self.survival.doubt()
            self.vouched = False
        self._restart()

    def offered(self, has_match: bool, had_match: bool, tokens: int) -> None:
        """Whether it has something to offer, used or not, and had in the last round of `tokens`."""
        self._offers += 1
        self.often += max(OFTEN_GAIN, 1 / self._offers) * (has_match - self.often)
        self._tokens += tokens
        gain = min(0.5, max(OFTEN_GAIN * tokens / 2, tokens / self._tokens))
        self.text += gain * (had_match - self.text)

    def observe(
        self, drafted: int, accepted: int, spent_ms: float, plain_ms: float, now: int
    ) -> None:
        """A round of this arm: learn, and rest when a full window of rounds lost time."""
        self.survival.learn(drafted, accepted, now)
        self.fresh = max(0, self.fresh - 1)
        kept = 1 - 1 / WINDOW
        self._spent_ms = self._spent_ms * kept + spent_ms
        self._plain_ms = self._plain_ms * kept + plain_ms
        self._measured += 1
        if self.on:
            self._rounds_on += 1
            if self._rounds_on >= PROVEN and self.goodput > 1:
                self._backoff = FIRST_REST
        if self._measured >= WINDOW and self.goodput < LOSS:
            self.rest(now, measured_loss=True)

    @property
    def goodput(self) -> float:
        """Measured speed over plain, of about the last WINDOW rounds; 1.0 before the first."""
        return self._plain_ms / self._spent_ms if self._spent_ms else 1.0
