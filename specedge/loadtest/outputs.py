"""Whether every way says what plain decoding says; a speed of other text is no speed."""

from __future__ import annotations

from specedge.loadtest.against import PLAIN
from specedge.loadtest.records import RequestRecord
from specedge.loadtest.serving import Served

_MOST_NAMED = 5


class Outputs:
    """Told every request that was served; `notes` says what differed.

    Args:
        width_noise: of the target, see `Engine`.
    """

    def __init__(self, width_noise: float = 0.0) -> None:
        self._noise = width_noise
        self._seen: dict[str, dict[int, set[str]]] = {}  # by way and number: hashes
        self._prompts: dict[int, str] = {}
        self._why_not: set[str] = set()  # outputs may differ

    def add(self, served: Served, record: RequestRecord) -> None:
        """A failed request has no output to compare."""
        if served.failure is not None or served.result is None:
            return
        rule = served.result.acceptance
        if rule == "coupled" and served.job.options.get("seed") is None:
            self._why_not.add("without a seed every request draws other tokens")
        elif rule not in ("greedy", "coupled"):
            self._why_not.add(
                f"with {rule} acceptance the tokens that are drawn depend on the drafts"
            )
        self._prompts[record.number] = record.prompt
        self._seen.setdefault(record.way, {}).setdefault(record.number, set()).add(record.output)

    def notes(self) -> list[str]:
        """A line for each way whose outputs are others; none where all are equal."""
        if self._why_not:
            return [
                f"outputs are not compared: {', '.join(sorted(self._why_not))}; a seed with "
                "acceptance auto or coupled makes them comparable"
            ]
        plain = self._seen.get(PLAIN, {})
        said = []
        for way, seen in self._seen.items():
            both = [number for number in seen if number in plain]
            differing = [n for n in both if len(seen[n] | plain[n]) > 1]
            if differing:
                said.append(self._differing(way, differing, len(both)))
        return said

    def _differing(self, way: str, numbers: list[int], both: int) -> str:
        named = ", ".join(f"{self._prompts[n]} (request {n})" for n in numbers[:_MOST_NAMED])
        more = len(numbers) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        what = "between repetitions" if way == PLAIN else "from plain decoding's"
        why = (
            f"its logits differ by up to {self._noise:.2g} with the number of tokens in a call, so "
            "near-ties may fall another way"
            if self._noise
            else "this engine promises equal ones: run `specedge verify`"
        )
        return f"outputs of {way} differ {what} on {len(numbers)} of {both}: {named}; {why}"
