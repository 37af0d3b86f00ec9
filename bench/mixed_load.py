"""A conversation that turns from chat to code editing and back: how fast does "auto" follow?

    python bench/mixed_load.py bundles/smollm2
    python bench/mixed_load.py bundles/smollm2 --json mixed.json --svg docs/mixed_load.svg

Turns: chat, edit, chat, edit, chat, in one conversation whose history grows; the bundle's record is
used (`specedge probe` makes one), or a short one is made in the first turn. Each turn is decoded
plainly and then with "auto", of which every round is reported. Both must say the same.

A model of 135M parameters does not give back a file on being asked to. So an example of an edit
stands in the history from the beginning, and the answers of both edits are begun: the first lines
of the file, which are no output and are not counted. The chat prompts are those of the built-in
workload on which the model does not repeat itself. With a larger model none of that is needed, and
it does no harm.

followed   the number of rounds after a turn's first token until 6 of the last 8 drafted (on), or
           did not draft (off); rounds of the turn before are among the last 8 at first
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controller_desk import AUTO, PLAIN, Desk, desk
from mixed_load_plot import plot

import specedge
from specedge.result import RoundReport
from specedge.workloads import builtin

PROMPTS = Path(__file__).parent / "prompts"
EDIT = "edit_60_lines.md"
RENAMES = (("SHOP_CITY", "SHOP_TOWN"), ("SHOP_NAME", "STORE_NAME"))
FILE_LINES = 28  # of the file that is edited: two edits and the rest must fit a small context
BEGUN_LINES = 6  # of the edited file
CHATS = (6, 23, 22)  # of the built-in class
CHAT_TOKENS = 120  # most of a chat turn: later SmolLM2 repeats itself
WINDOW, ENOUGH = 8, 6
NOTE = (
    "the edits' answers are begun, and an example of one stands in the history: SmolLM2 gives back "
    "no file otherwise"
)


@dataclass(frozen=True)
class Turn:
    """One request of the conversation.

    Args:
        kind: "chat" or "edit".
        asked: the user's message.
        begun: what the answer starts with; not part of the output.
        stop: ends the answer.
    """

    kind: str
    asked: str
    begun: str = ""
    stop: tuple[str, ...] = ()


@dataclass
class Said:
    """A turn as it went: output ids, rounds after the first token, the reason at its end, text."""

    kind: str
    tokens: list[int]
    rounds: list[RoundReport]
    reason: str
    text: str


def conversation() -> tuple[list[dict[str, str]], list[Turn]]:
    """What was said before, and the turns."""
    _, greeting, _, answered, _, file, *_ = (PROMPTS / EDIT).read_text("utf-8").split("```")
    greeting, answered, file = (text.removeprefix("python") for text in (greeting, answered, file))
    file = "".join(file.splitlines(keepends=True)[: FILE_LINES + 1])
    before = [
        {"role": "user", "content": edit_of(greeting, "GREETING_NAME", "GREETING_WHO")},
        {"role": "assistant", "content": f"```python{answered}```"},
    ]
    chats = next(each for each in builtin() if each.name == "chat").prompts
    turns = []
    for place, number in enumerate(CHATS):
        messages = chats[number].messages
        assert messages is not None, "chat prompts are messages"
        turns.append(Turn("chat", messages[-1]["content"]))
        if place < len(RENAMES):
            old, new = RENAMES[place]
            lines = file.replace(old, new).splitlines(keepends=True)[: BEGUN_LINES + 1]
            begun = f"```python{''.join(lines)}"
            turns.append(Turn("edit", edit_of(file, old, new), begun, ("```",)))
    return before, turns


def edit_of(file: str, old: str, new: str) -> str:
    return f"```python{file}```\n\nRename `{old}` to `{new}` and give back the whole file."


def converse(desk: Desk, tokens: int) -> dict[str, list[Said]]:
    """The whole conversation, greedy: each turn plainly, then with "auto", from the same KV."""
    model = desk.model
    messages, turns = conversation()
    template = model.require_template("the conversation")
    desk.empty(model.encode(messages)[0])
    said: dict[str, list[Said]] = {PLAIN: [], AUTO: []}
    for turn in turns:
        messages.append({"role": "user", "content": turn.asked})
        ids = model.tokenizer.encode(template.render(messages) + turn.begun, add_special=False)
        for way, its in said.items():
            desk.use(way)
            most = min(tokens, CHAT_TOKENS) if turn.kind == "chat" else tokens
            result = model.generate(ids, max_tokens=most, stop=turn.stop, explain=True)
            assert result.rounds is not None, "rounds were asked for"
            reason = result.speculation.reason
            its.append(Said(turn.kind, result.tokens, result.rounds, reason, result.text))
        answer = turn.begun + said[PLAIN][-1].text + ("```" if turn.stop else "")
        messages.append({"role": "assistant", "content": answer})
        print(f"{turn.kind}: {len(said[PLAIN][-1].tokens)} tokens", file=sys.stderr)
    return said


def followed(before: Sequence[RoundReport], rounds: Sequence[RoundReport], on: bool) -> int | None:
    """Rounds of a turn until most of the last ones drafted, or did not; None: it never did."""
    drafting = [bool(each.drafted) for each in (*before, *rounds)]
    for number in range(1, len(rounds) + 1):
        last = drafting[: len(before) + number][-WINDOW:]
        if sum(each is on for each in last) >= ENOUGH:
            return number
    return None


def summary(turns: Sequence[Said], plain: Sequence[Said]) -> list[dict[str, Any]]:
    """One entry a turn."""
    made = []
    before: list[RoundReport] = []
    for mine, its in zip(turns, plain, strict=True):
        on = mine.kind == "edit"
        drafted = [each for each in mine.rounds if each.drafted]
        made.append(
            {
                "kind": mine.kind,
                "tokens": len(mine.tokens),
                "rounds": len(mine.rounds),
                "drafting_rounds": len(drafted),
                "drafted": sum(each.drafted for each in drafted),
                "accepted": sum(each.accepted for each in drafted),
                "plain_tokens_per_second": speed(its.rounds),
                "auto_tokens_per_second": speed(mine.rounds),
                "expected": "on" if on else "off",
                "followed_rounds": followed(before, mine.rounds, on),
                "same_text": mine.tokens == its.tokens,
                "reason": mine.reason,
            }
        )
        before = mine.rounds
    return made


def speed(rounds: Sequence[RoundReport]) -> float:
    """Tokens after the first per second; 0 where there were none."""
    spent = sum(each.ms for each in rounds)
    return sum(each.committed for each in rounds) * 1e3 / spent if spent else 0.0


def table(entries: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'turn':<6}{'tokens':>7}{'rounds':>7}{'drafting':>9}{'accepted':>10}{'plain/s':>9}"
        f"{'auto/s':>8}{'':>7}  followed"
    ]
    for each in entries:
        gain = each["auto_tokens_per_second"] / (each["plain_tokens_per_second"] or 1)
        after = each["followed_rounds"]
        said = f"{each['expected']} {'never' if after is None else f'after {after} rounds'}"
        share = f"{each['accepted']}/{each['drafted']}"
        lines.append(
            f"{each['kind']:<6}{each['tokens']:>7}{each['rounds']:>7}{each['drafting_rounds']:>9}"
            f"{share:>10}{each['plain_tokens_per_second']:>9.1f}"
            f"{each['auto_tokens_per_second']:>8.1f}{gain:>6.2f}x  {said}"
            f"{'' if each['same_text'] else '  ANOTHER TEXT THAN PLAIN'}"
        )
    return "\n".join(lines)


def main() -> int:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=250, help="most of a turn")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="OUT", help="every round of both")
    parser.add_argument("--svg", type=Path, metavar="OUT", help="the trace as a plot")
    given = parser.parse_args()
    # With the bundle's context a run finds the record that `specedge probe` has left.
    with desk(given.bundle, ("ngram", "draft"), given.threads, None) as opened:
        name, engine = opened.model.bundle.manifest.name, opened.model.engine
        said = converse(opened, given.tokens)
    plain, auto = said[PLAIN], said[AUTO]
    entries = summary(auto, plain)
    print(f"{name} on {engine}; {NOTE}\n{table(entries)}")
    if given.json is not None:
        traces = {way: [asdict(turn) for turn in its] for way, its in said.items()}
        made = {"command": sys.argv, "name": name, "engine": engine, "note": NOTE}
        given.json.write_text(json.dumps({**made, "turns": entries, **traces}), encoding="utf-8")
    if given.svg is not None:
        kinds = [turn.kind for turn in auto]
        mine, its = ([turn.rounds for turn in one] for one in (auto, plain))
        given.svg.write_text(plot(kinds, mine, its, f"{name}, {engine}"), encoding="utf-8")
    return 0 if all(each["same_text"] for each in entries) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except specedge.SpecedgeError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
