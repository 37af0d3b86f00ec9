"""The model's chat template: messages to the text of a prompt.

Templates come with checkpoints, so they run in jinja2's immutable sandbox. The names and switches
they rely on are the field's convention: `messages`, `add_generation_prompt`, `bos_token`,
`eos_token`, `raise_exception`, `strftime_now`, `tojson`, `{% break %}`, `{% generation %}`, and
blocks that leave no blank line behind.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specedge.errors import PromptError, one_line
from specedge.tokenizer import check_text

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, str]

MESSAGE_KEYS = ("role", "content")


class ChatTemplate:
    """A chat template; a broken one is an error of the messages it is used for.

    Args:
        source: content of `chat_template.jinja`.
        special: text of the special tokens that templates name: `bos_token`, `eos_token`, ...
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._special = dict(special or {})
        self._compiled: jinja2.Template | None = None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Text that asks for the next assistant message.

        Raises:
            PromptError: the messages are malformed, or the template failed or refused them.
        """
        check_messages(messages)
        self.compile()
        import jinja2

        assert self._compiled is not None, "compile returned without a template"
        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except (jinja2.TemplateError, *_FAILURES) as exc:
            raise PromptError(
                f"chat template: {one_line(exc)}; change the messages, or use a plain prompt"
            ) from exc

    def compile(self) -> None:
        """Do now what the first `render` would spend tens of milliseconds on.

        Raises:
            PromptError: the template is not valid jinja2; `render` will say so too.
        """
        if self._compiled is not None:
            return
        import jinja2

        try:
            self._compiled = _environment().from_string(self._source)
        except jinja2.TemplateSyntaxError as exc:
            raise PromptError(
                f"chat template, line {exc.lineno}: {exc.message}; fix the checkpoint's template "
                "and export again, or use plain prompts"
            ) from exc
        except (SyntaxError, RecursionError, MemoryError) as exc:
            # jinja2 accepts what Python's compiler then finds nested too deeply
            raise PromptError(
                f"chat template: {' '.join(str(exc).split()) or type(exc).__name__}; fix the "
                "checkpoint's template and export again, or use plain prompts"
            ) from exc


# A template is a program over what the caller wrote: these are what its expressions can raise.
_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def check_messages(messages: object) -> None:
    """Raise PromptError unless `messages` is a list of {"role": str, "content": str}."""
    if not isinstance(messages, list | tuple):
        raise PromptError(f"messages: expected a list, found {type(messages).__name__}")
    if not messages:
        raise PromptError("messages: the list is empty; expected at least one message")
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(message, Mapping):
            raise PromptError(
                f'{where}: expected {{"role": ..., "content": ...}}, found {message!r:.60}'
            )
        for key in MESSAGE_KEYS:
            text = message.get(key)
            if not isinstance(text, str):
                found = "nothing" if key not in message else f"{type(text).__name__}"
                raise PromptError(f"{where}.{key}: expected text, found {found}")
            check_text(text, f"{where}.{key}")
        if not message["role"]:
            raise PromptError(f"{where}.role: expected text, found an empty string")
        for key in message:
            if key not in MESSAGE_KEYS:
                raise PromptError(
                    f"{where}: the key {key!r} is not supported; "
                    f"leave it out, this version reads {' and '.join(MESSAGE_KEYS)}"
                )


def _environment() -> jinja2.Environment:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}` marks the assistant's text for training; here it is only its body."""

        tags = {"generation"}  # noqa: RUF012  jinja2 declares it as an instance attribute

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Not jinja2's own filter: that one escapes for HTML.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
