"""A conversation: the history, and one request for each turn.

Every turn renders the whole conversation with the model's template. How much of the KV is kept is
not the chat's business: the model compares the new prompt with the tokens it has cached, and runs
what differs.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Unpack

from specedge.errors import OptionError, PromptError
from specedge.generation import Generation
from specedge.options import OptionKeywords
from specedge.result import Result

if TYPE_CHECKING:
    from specedge.model import Model


class Chat:
    """Turns with one model; `Model.chat` makes it.

    A turn enters the history when it ends. One that was cancelled enters with what was said so
    far; one that failed, or said nothing before it was cancelled, does not.
    """

    def __init__(self, model: Model, system: str | None = None) -> None:
        """Raises PromptError when the model has no chat template."""
        model.require_template("chat")
        self._model = model
        self._system = system
        self._messages: list[dict[str, str]] = []
        self.clear()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The history, the system prompt first; a copy."""
        return [dict(message) for message in self._messages]

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        first = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._messages = first

    def stream(self, text: str, **options: Unpack[OptionKeywords]) -> Generation:
        """Answer `text`; options as `Model.stream`.

        Raises:
            OptionError: also for `echo`, which would put the template's text into the history, and
                for `n`: a chat goes on from one answer.
            PromptError, BusyError, EngineError: as `Model.stream`.
        """
        n: object = options.get("n")
        if n is not None and not (isinstance(n, Integral) and n == 1):
            raise OptionError("n: a chat goes on from one answer; leave n out")
        if options.get("echo") is True:
            raise OptionError("echo: not available in a chat; leave it out")
        if not isinstance(text, str) or not text:
            raise PromptError("chat: the message is empty; expected text")
        asked = {"role": "user", "content": text}
        messages = self._messages

        def record(result: Result | None, error: BaseException | None) -> None:
            if result is None or isinstance(error, Exception):
                return
            if result.finish_reason == "cancelled" and not result.text:
                return
            messages.extend((asked, {"role": "assistant", "content": result.text}))

        return self._model.start([*messages, asked], options, on_end=record)

    def send(self, text: str, **options: Unpack[OptionKeywords]) -> Result:
        """`stream` to its end."""
        return self._model.finish(self.stream(text, **options))
