"""How fast this machine is now, against its cost curve.

A call of width N is taken to cost curve(N) * exp(pace + bias[N]): the pace is the machine's (heat,
power mode, another process) and slows plain decoding alike; a bias is the curve's own error at one
width. Only a plain step tells the two apart. Right after one, what a wider call took too long is
its bias; the longer ago the last plain step, the more of it is pace; and when the next plain step
shows that the pace had not moved, the biases of the widths used since take it over.
"""

from __future__ import annotations

from math import exp, log

GAIN = 0.15  # of the pace
BIAS_GAIN = 0.08  # of a bias: the curve was measured with care, a single call was not
ODD = 0.25  # log units by which two calls running must be off the same way to be a jump
SETTLE = 0.7  # of what a plain step says was no change of pace
SPIKE = 0.5  # a single call counts as no further off than this
LEAST, MOST = -1.2, 1.2  # of a bias
DOUBT_CALLS = 8.0  # calls after a plain step at which half of a surprise counts as pace
RECHECK_CALLS, RECHECK_MOVED = 12, 0.12
CHECK_CALLS = 192


class Pace:
    """Rolling ratio of observed to predicted times; `factor` is of plain decoding.

    Width 1 is plain and has no bias. Width 0 stands for the draft's own calls.
    """

    __slots__ = ("_fresh", "_log", "_moved", "_odd", "_since", "bias", "factor", "share")

    def __init__(self, widest: int) -> None:
        self.bias = [0.0] * (widest + 1)
        self.share = [1.0] * (widest + 1)  # exp(bias); read only
        self.factor = 1.0  # exp(pace)
        self._log = 0.0
        self._odd = 0.0
        self._fresh: set[int] = set()  # widths seen since the last plain step
        self._since = 0
        self._moved = 0.0  # what `_log` has moved by since then

    def observe(self, width: int, ratio: float) -> None:
        """A call took `ratio` times what the curve says; a ratio that is not above 0 is ignored.

        A clock that goes backwards must not be learned from.
        """
        if not 0 < ratio < float("inf"):
            return
        off = log(ratio) - self._log - self.bias[width]
        jump = off if abs(off) > ODD and off * self._odd > 0 else 0.0
        self._odd = off if abs(off) > ODD else 0.0
        off = max(-SPIKE, min(SPIKE, off))
        if width == 1:
            self._plain(off, jump)
        else:
            self._wide(width, off, jump)
        self.factor = exp(self._log)

    def _plain(self, off: float, jump: float) -> None:
        step = jump or GAIN * off
        if self._moved * off < 0:
            # Wider calls had moved the pace, and plain decoding did not follow: it was their bias.
            back = min(abs(off), abs(self._moved)) * SETTLE
            step = back if off > 0 else -back
            for width in self._fresh:
                self._set(width, self.bias[width] - step)
        self._log += step
        if abs(off) < ODD / 2:
            self._fresh.clear()
            self._moved, self._since = 0.0, 0
        else:
            self._moved += step

    def _wide(self, width: int, off: float, jump: float) -> None:
        self._since += 1
        self._fresh.add(width)
        to_pace = jump
        if not jump:
            known = DOUBT_CALLS / (self._since + DOUBT_CALLS)  # how well plain decoding is
            to_pace = GAIN * off * (1 - known)
            self._set(width, self.bias[width] + BIAS_GAIN * off * known)
        self._log += to_pace
        self._moved += to_pace

    def draft(self, ratio: float) -> None:
        """The draft's calls of a round took `ratio` times what its curve says."""
        if 0 < ratio < float("inf"):
            off = max(-SPIKE, min(SPIKE, log(ratio) - self._log - self.bias[0]))
            self._set(0, self.bias[0] + BIAS_GAIN * off)

    def _set(self, width: int, bias: float) -> None:
        self.bias[width] = bias = max(LEAST, min(MOST, bias))
        self.share[width] = exp(bias)

    @property
    def wants_plain(self) -> bool:
        """The pace has moved, or was not looked at for long: the next round should be plain."""
        if self._since >= CHECK_CALLS:
            return True
        return self._since >= RECHECK_CALLS and abs(self._moved) > RECHECK_MOVED
