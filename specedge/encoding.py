"""From what a caller gives as a prompt to token ids that the model knows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as AnySequence
from typing import Any, Self

import numpy as np

from specedge.bundle import Bundle
from specedge.contract import Ids
from specedge.errors import PromptError
from specedge.template import ChatTemplate, Message
from specedge.tokenizer import Tokenizer

Prompt = str | AnySequence[Message] | AnySequence[int] | Ids


class Encoder:
    """A bundle's tokenizer and chat template together.

    Args:
        name: of the model, for errors.
        vocab: V; a tokenizer may have tokens that its model does not.
        tokenizer: the bundle's.
        template: None: the model has none.
    """

    def __init__(
        self, name: str, vocab: int, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        self._name = name
        self._vocab = vocab
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def of(cls, bundle: Bundle, tokenizer: Tokenizer) -> Self:
        """Of an open bundle."""
        manifest = bundle.manifest
        return cls(manifest.name, manifest.target.vocab, tokenizer, _template(bundle, tokenizer))

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def require_template(self, what: str) -> ChatTemplate:
        """The chat template, or PromptError that says `what` needs one."""
        if self._template is None:
            raise PromptError(
                f"{what}: {self._name} has no chat template; pass the prompt as a string"
            )
        return self._template

    def encode(self, prompt: Prompt) -> tuple[Ids, str]:
        """Token ids of a prompt, int64 [n], and its text as `echo` gives it.

        Raises:
            PromptError: empty, malformed, not text, or an id outside the vocabulary.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise PromptError("prompt: it is empty; expected some text")
            return self._known(self._tokenizer.encode(prompt), "prompt"), prompt
        if not isinstance(prompt, list | tuple | np.ndarray):
            raise PromptError(
                "prompt: expected text, a list of messages or token ids, "
                f"found {type(prompt).__name__}"
            )
        if len(prompt) == 0:
            raise PromptError("prompt: it is empty; expected text, messages or token ids")
        if isinstance(prompt, np.ndarray) or isinstance(prompt[0], int | np.integer):
            ids = self._checked_ids(prompt)
            return ids, self._tokenizer.decode(ids)
        text = self.require_template("messages").render(prompt)
        if not text:
            raise PromptError("messages: the chat template made an empty prompt of them")
        ids = self._tokenizer.encode(text, add_special=False, where="messages")
        return self._known(ids, "messages"), text

    def _checked_ids(self, prompt: AnySequence[Any] | Ids) -> Ids:
        if not isinstance(prompt, np.ndarray):
            for place, id_ in enumerate(prompt):
                if isinstance(id_, bool) or not isinstance(id_, int | np.integer):
                    raise PromptError(f"prompt[{place}]: expected a token id, found {id_!r:.60}")
        ids = np.asarray(prompt)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise PromptError(
                f"prompt: expected token ids as integers [n], found {ids.dtype} {list(ids.shape)}"
            )
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab))
        if len(wrong):
            raise PromptError(
                f"prompt: id {ids[wrong[0]]} at place {wrong[0]}; "
                f"the vocabulary has ids 0..{self._vocab - 1}"
            )
        return ids.astype(np.int64)

    def _known(self, ids: Ids, where: str) -> Ids:
        """PromptError names the first id that the model does not know."""
        if len(ids) and ids.max() >= self._vocab:
            first = int(ids[ids >= self._vocab][0])
            raise PromptError(
                f"{where}: the model has no token {self._tokenizer.token(first)!r} (id {first}; it "
                f"knows 0..{self._vocab - 1}); leave it out"
            )
        return ids


def _template(bundle: Bundle, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = bundle.chat_template
    if source is None:
        return None
    spec = bundle.manifest.tokenizer
    named = {
        "bos_token": tokenizer.token(spec.bos_id),
        "eos_token": tokenizer.token(spec.eos_ids[0] if spec.eos_ids else None),
        "pad_token": tokenizer.token(spec.pad_id),
    }
    template = ChatTemplate(
        source, {name: text for name, text in named.items() if text is not None}
    )
    with contextlib.suppress(PromptError):  # a broken one must not stop plain prompts
        template.compile()
    return template
