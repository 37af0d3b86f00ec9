"""Prompts of one class, and whether one of them fits a context."""

from __future__ import annotations

from dataclasses import dataclass

from specedge.errors import PromptError


@dataclass(frozen=True)
class WorkloadPrompt:
    """One prompt: for the chat template, as raw text, or as either; at least one is set.

    Args:
        messages: for the chat template; each has "role" and "content".
        text: continued as it is. With `messages` beside it: only where there is no template.
        where: for a person, "my.jsonl, line 12" or "built in, chat 7".
    """

    messages: tuple[dict[str, str], ...] | None
    text: str | None
    where: str

    def __post_init__(self) -> None:
        assert self.messages or self.text, f"{self.where}: neither messages nor text"

    def given(self, *, has_template: bool) -> list[dict[str, str]] | str:
        """What `Model.stream` and `Model.encode` take for this prompt.

        Raises:
            PromptError: there are only messages, and the model has no chat template.
        """
        if self.messages is not None and has_template:
            return [dict(message) for message in self.messages]
        if self.text is None:
            raise PromptError(
                f'{self.where}: "messages" need a chat template, and this model has none; '
                'write it as "prompt" or "text"'
            )
        return self.text


@dataclass(frozen=True)
class Workload:
    """A class of prompts: what is true of one is expected of the others.

    Args:
        name: of the class, printable, one line.
        prompts: at least one.
        source: "built in", or "my.jsonl, sha256 0123456789ab" with the start of the file's hash.
    """

    name: str
    prompts: tuple[WorkloadPrompt, ...]
    source: str


def fits(prompt: WorkloadPrompt, n_prompt_tokens: int, context: int, room: int) -> None:
    """Check that a prompt leaves `room` tokens of `context` for its answer.

    Args:
        prompt: that was encoded; only its `where` is used.
        n_prompt_tokens: of the encoded prompt, template included.
        context: tokens that the model holds.
        room: tokens that the answer may need, >= 0.

    Raises:
        PromptError: there are more tokens than `context - room`; says how many fit.
    """
    left = max(0, context - room)
    if n_prompt_tokens > left:
        raise PromptError(
            f"{prompt.where}: the prompt has {n_prompt_tokens:,} tokens, the context of "
            f"{context:,} leaves {left:,} beside {room:,} for the answer; shorten the prompt, "
            "or export with a larger context"
        )
