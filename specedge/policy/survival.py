"""How far a draft stands: learned round by round, place by place, and forgotten again.

At place i of a draft (0 is the first) a token that was reached stands with probability p_i. p_i is
an exponential average of what happened there, drawn by one observation's weight towards p_(i-1):
a place that was never reached is taken to be like the one before it. A draft that falls at place i
teaches places 0..i, so short drafts teach long ones and the other way round.

    S_k = p_0 p_1 .. p_k         the first k + 1 tokens stand
    E_K = 1 + S_0 + .. + S_(K-1) expected tokens of a round with K drafted ones

Text changes its character in an instant. When the lengths that stood leave what the average
expects, always to the same side, all that was seen before they began to is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from specedge.errors import OptionError, ShapeError

SLOW = 1 - 1 / 128  # weight kept by one more observation of a place
TIE = 1.0  # observations' weight of the place before, and
LEAN = 0.3  # more for each one that it has seen more: else K would stay where a prior put it
HALF_LIFE = 1024  # tokens of text after which evidence counts half
AGE_EVERY = 64  # tokens
DRIFT = 1 / 8  # gain of the average by which a change is noticed
# That average of standardised lengths has a spread of sqrt(DRIFT / (2 - DRIFT)) = 0.26 while
# nothing changes; a thousand rounds at 3.9 spreads give about one false alarm in ten.
NOISE, ALARM = 0.26, 1.0
MOST_SURPRISE = 4.0  # of one round, in standard errors: alone it must not raise the alarm
LONG_SURPRISE = 0.5, 6.0  # more for each token that stood above the first, and the most
HOPE = 0.5  # standard errors, beyond the first place's, that K is chosen with: else bad luck lasts
LOW, HIGH = 1.0, 1.5  # standard errors below and above the mean


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before the first round.

    Args:
        stands: p_i by place, each in 0..1; places past the last are taken to be like it.
        weight: observations that the belief is worth, at each place named.
        measured: a calibration on this device and workload, not a default.
    """

    stands: tuple[float, ...] = (0.5,)
    weight: float = 2.0
    measured: bool = False

    def __post_init__(self) -> None:
        if not self.stands or not all(0 <= p <= 1 for p in self.stands):
            raise OptionError(f"stands: expected probabilities, at least one, found {self.stands}")
        if not 0 < self.weight < float("inf"):
            raise OptionError(f"weight: expected more than 0, found {self.weight}")


class Survival:
    """Expected tokens of a round for every K, with a low and a high estimate.

    `mean` and `hope` are lists [longest + 1] by K, kept up to date: read them, do not change them.
    `hope` is the mean with more faith in places that were seen less than the first one, to choose K
    by; its excess fades as they are tried. `low_of` and `high_of` a K are standard errors away, by
    the rounds that the first place has seen.
    """

    __slots__ = (
        "_aged_at",
        "_drift",
        "_lately_n",
        "_lately_stood",
        "_n",
        "_prior",
        "_rounds",
        "_stood",
        "_variance",
        "hope",
        "longest",
        "mean",
        "place",
    )

    def __init__(self, longest: int, prior: Prior) -> None:
        """`longest` is the largest K, 1 or more."""
        if longest < 1:
            raise OptionError(f"longest: expected 1 or more, found {longest}")
        self.longest = longest
        self._prior = prior
        self.place = [0.0] * longest  # p_i
        self.mean = [1.0] * (longest + 1)
        self.hope = self.mean[:]
        self._variance = [0.0] * (longest + 1)
        self._aged_at = 0
        self._start(prior.weight)

    def _start(self, weight: float) -> None:
        believed = self._prior.stands[: self.longest]
        rest = [0.0] * (self.longest - len(believed))
        self._n = [weight] * len(believed) + rest
        self._stood = [weight * p for p in believed] + rest
        self._drift = 0.0
        self._begin()
        self._refresh()

    def _begin(self) -> None:
        """From here on the average leaves what is expected."""
        self._lately_n = [0.0] * self.longest
        self._lately_stood = [0.0] * self.longest

    @property
    def rounds(self) -> float:
        """Rounds that the estimate rests on, the prior's weight included."""
        return self._n[0]

    def low_of(self, k: int) -> float:
        """Low estimate of a round with K drafted tokens."""
        return self.mean[k] - LOW * sqrt(self._variance[k] / self._rounds)

    def high_of(self, k: int) -> float:
        return min(k + 1.0, self.mean[k] + HIGH * sqrt(self._variance[k] / self._rounds))

    def learn(self, drafted: int, accepted: int, now: int) -> None:
        """One round's outcome.

        Args:
            drafted: K, 1..longest.
            accepted: 0..K.
            now: tokens of text so far, never falling: the clock by which evidence ages.

        Raises:
            ShapeError: K or the accepted count is outside its range.
        """
        if not 1 <= drafted <= self.longest or not 0 <= accepted <= drafted:
            raise ShapeError(
                f"accepted {accepted} of {drafted}: expected 0..K of K in 1..{self.longest}"
            )
        variance = self._variance[drafted]
        if variance > 1e-4:
            surprise = (accepted - (self.mean[drafted] - 1)) / sqrt(variance)
        else:
            surprise = 4.0 * (accepted - (self.mean[drafted] - 1))
        step, limit = LONG_SURPRISE
        most = min(limit, MOST_SURPRISE + step * max(0, accepted - 1))
        before = self._drift
        self._drift += DRIFT * (max(-MOST_SURPRISE, min(most, surprise)) - before)
        if abs(self._drift) <= NOISE or self._drift * before < 0:
            self._begin()

        if now - self._aged_at >= AGE_EVERY:
            self._age(now)
        n, stood, lately_n, lately_stood = self._n, self._stood, self._lately_n, self._lately_stood
        for i in range(min(accepted + 1, drafted)):
            hit = 1.0 if i < accepted else 0.0
            n[i] = n[i] * SLOW + 1
            stood[i] = stood[i] * SLOW + hit
            lately_n[i] += 1
            lately_stood[i] += hit
        if abs(self._drift) > ALARM:
            self._n, self._stood = lately_n, lately_stood
            self._drift = 0.0
            self._begin()
        self._refresh()

    def _age(self, now: int) -> None:
        """Places that are not reached any more must not be believed for ever."""
        kept = 0.5 ** ((now - self._aged_at) / HALF_LIFE)
        self._aged_at = now
        for kind in (self._n, self._stood):
            kind[:] = [kept * weight for weight in kind]

    def doubt(self) -> None:
        """Forget what was seen: evidence that is too old to argue from. The prior stays, weak."""
        self._start(min(2.0, self._prior.weight))

    def _refresh(self) -> None:
        stood, place = self._stood, self.place
        means, hopes, variances = self.mean, self.hope, self._variance
        before, most = self._prior.stands[0], 0.0
        self._rounds = rounds = self._n[0] + TIE
        root = 1 / sqrt(rounds)
        alive = mean = hoped = hope = 1.0
        second = 0.0
        k = 1
        for i, n in enumerate(self._n):
            if n >= most:
                tie, most = TIE, n
            else:
                tie = TIE + LEAN * (most - n)
            weight = n + tie
            before = place[i] = (stood[i] + tie * before) / weight
            alive *= before
            mean += alive
            if weight < rounds:
                spread = sqrt(before * (1 - before))
                stands = before + HOPE * spread * (1 / sqrt(weight) - root)
                hoped *= stands if stands < 1 else 1.0
            else:
                hoped *= before
            hope += hoped
            second += (k + i) * alive  # E[A^2] = sum of (2 i + 1) P(A > i)
            variance = second - (mean - 1) ** 2
            means[k], hopes[k], variances[k] = mean, hope, variance if variance > 0 else 0.0
            k += 1
