"""Numbers as a person reads them; the same in the page and in the terminal."""

from __future__ import annotations

from datetime import datetime

from specedge.probe.findings import Estimate

NOTHING = "–"


def three_digits(ms: float | None) -> str:
    """Milliseconds, or another amount; more digits would be noise."""
    if ms is None:
        return NOTHING
    return f"{ms:.0f}" if ms >= 99.95 else f"{ms:.1f}" if ms >= 9.995 else f"{ms:.2f}"


def times(gain: float) -> str:
    """A speed over another."""
    return f"{gain:.2f}x" if gain < 99.995 else f"{gain:.0f}x"


def share(part: float) -> str:
    """A part of one, in percent; only none and all are called 0 % and 100 %."""
    percent = 100 * part
    if 0 < percent < 0.5:
        return "<1%"
    if 99.5 <= percent < 100:
        return ">99%"
    return f"{percent:.0f}%"


def interval(estimate: Estimate | None, *, nothing: str = NOTHING) -> str:
    """ "1.16x (1.10 to 1.22)", or the gain alone where there is no interval."""
    if estimate is None:
        return nothing
    if estimate.low is None or estimate.high is None:
        return times(estimate.gain)
    return f"{times(estimate.gain)} ({estimate.low:.2f} to {estimate.high:.2f})"


def parted(estimate: Estimate | None) -> tuple[str, str]:
    """As `interval`, the gain apart from its range: ("1.16x", "1.10 to 1.22")."""
    gain, _, ends = interval(estimate).partition(" (")
    return gain, ends.rstrip(")")


def narrow_interval(estimate: Estimate | None) -> str:
    """ "1.16x 1.10..1.22": as `interval`, for a table in a terminal."""
    gain, ends = parted(estimate)
    return f"{gain} {ends.replace(' to ', '..')}".rstrip()


def joules(amount: float) -> str:
    return f"{amount:.3g} J" if amount < 999.5 else f"{amount:.0f} J"


def seconds(amount: float) -> str:
    if amount < 9.95:
        return f"{amount:.1f} s"
    if amount < 119.5:
        return f"{amount:.0f} s"
    minutes, rest = divmod(round(amount), 60)
    return f"{minutes} min {rest} s"


def moment(created: str) -> str:
    """An ISO 8601 time to the minute; what is none is shown as it is."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    zone = when.strftime("%Z") or ""
    return f"{when:%Y-%m-%d %H:%M} {zone}".rstrip()


def counted(number: int, one: str, more: str | None = None) -> str:
    """ "1 prompt", "12 prompts"."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def listed(names: list[str]) -> str:
    """ "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
