"""Text to ids, and ids back to text as they arrive.

`Tokenizer` wraps `tokenizers.Tokenizer`. `TextDecoder` turns generated ids into text deltas whose
concatenation is what decoding prompt and output together would have added to the prompt's text:

- Bytes of an unfinished character are held back; `flush` gives them out as U+FFFD.
- The space that SentencePiece-like tokenizers drop from the start of a text is dropped only when
  the prompt has no text before it.
- Special tokens and ids the tokenizer does not know have no text.

Byte-level and SentencePiece-like decoders reduce to a table from id to bytes (filled as ids are
seen) in front of a UTF-8 decoder: about a microsecond a token. Any other decoder is run over a
short window of ids instead.

One difference is wanted: where a SentencePiece-like decoder turns a whole run of byte tokens into
U+FFFD because one byte in it is wrong, the incremental decoder keeps the characters that are right.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import tokenizers

from specedge.contract import Ids, TokenizerSpec
from specedge.errors import BundleError, PromptError

SPACE = "\u2581"  # ▁, how SentencePiece writes a space
CONTEXT_IDS = 8  # ids before the output that can change how its first character is written
HELD_IDS = 8  # an unfinished character has at most 4 bytes; longer is text that ends in U+FFFD


class TextDecoder(Protocol):
    """Deltas of one output, in order."""

    def piece(self, token: int) -> str:
        """Text that became final with `token`; "" while a character is unfinished."""
        ...

    def pieces(self, tokens: Sequence[int]) -> str:
        """The concatenation of `piece` over `tokens`."""
        ...

    def flush(self) -> str:
        """U+FFFD for a character that was never finished, else ""."""
        ...


class Tokenizer:
    """The bundle's tokenizer.

    Args:
        text: content of `tokenizer.json`.
        spec: the manifest's record of it.
        where: what an error calls the file.

    Raises:
        BundleError: `text` is not a tokenizer.
    """

    def __init__(self, text: str, spec: TokenizerSpec, where: str = "tokenizer.json") -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_str(text)
        except Exception as exc:  # the library raises bare Exception for whatever is wrong
            raise BundleError(f"{where}: not a tokenizer: {exc}; export the bundle again") from exc
        self._inner.no_truncation()
        self._inner.no_padding()
        self.spec = spec
        decoder = self._inner.decoder
        self._scheme = None if decoder is None else _scheme(json.loads(decoder.__getstate__()))
        self._special: dict[str, int] = {
            added.content: id_
            for id_, added in self._inner.get_added_tokens_decoder().items()
            if added.special
        }
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special: bool = True, where: str = "prompt") -> Ids:
        """Ids of `text`, int64 [n]; begins with the BOS id when the model's tokenizer adds one.

        Special tokens written in the text become their ids, as templates rely on.

        Raises:
            PromptError: the text holds a lone surrogate, named by place and code.
        """
        check_text(text, where)
        ids = self._inner.encode(text, add_special_tokens=False).ids
        if add_special and self.spec.adds_bos and self.spec.bos_id is not None:
            ids = [self.spec.bos_id, *ids]
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, special tokens left out."""
        text: str = self._inner.decode([int(id_) for id_ in ids], skip_special_tokens=True)
        return text

    def token(self, id_: int | None) -> str | None:
        """How the vocabulary writes an id, or None when it has no such id."""
        if id_ is None or id_ < 0:
            return None
        found: str | None = self._inner.id_to_token(id_)
        return found

    def token_bytes(self, id_: int) -> bytes:
        """What one id adds to a text (b"" for special and unknown ids), wherever it stands."""
        found = self._bytes.get(id_)
        if found is None:
            found = self._bytes[id_] = self._spell(id_)
        return found

    def named(self, id_: int) -> str:
        """An id for a person: what it adds to a text, with U+FFFD for a part of a character; a
        special token as the vocabulary writes it."""
        return self.token_bytes(id_).decode("utf-8", "replace") or self.token(id_) or ""

    def special_tokens(self) -> dict[str, int]:
        """Tokens that never appear in a text, with their ids."""
        return self._special

    def stream(self, prompt: Iterable[int] = ()) -> TextDecoder:
        """A decoder for what follows `prompt`."""
        before = list(prompt)
        if self._scheme is None:
            return WindowDecoder(self._inner, before)
        return ByteDecoder(self, before, self._scheme)

    def _spell(self, id_: int) -> bytes:
        token = self.token(id_)
        if token is None or token in self._special:
            return b""
        if self._scheme is None:
            return self.decode([id_]).encode()
        if self._scheme.kind == "bytes":
            try:
                return bytes(_BYTE_OF[char] for char in token)
            except KeyError:  # an added token is written as itself
                return token.encode()
        if self._scheme.byte_tokens and len(token) == 6 and token[:3] == "<0x" and token[5] == ">":
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        return token.replace(SPACE, " ").encode()


class ByteDecoder:
    """TextDecoder over `Tokenizer.token_bytes`."""

    def __init__(self, owner: Tokenizer, before: Sequence[int], scheme: _Scheme) -> None:
        self._table = owner._bytes
        self._lookup = owner.token_bytes
        self._pending = b""
        self._strip: Literal["none", "one", "all"] = "none"
        for id_ in before[-CONTEXT_IDS:]:
            self.piece(id_)
        if scheme.strip != "none" and not any(map(self._lookup, before)):
            self._strip = scheme.strip

    def piece(self, token: int) -> str:
        data = self._table.get(token)
        if data is None:
            data = self._lookup(token)
        if not data:
            return ""
        if self._strip != "none":
            data = self._without_leading_space(data)
        if self._pending:
            data = self._pending + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def pieces(self, tokens: Sequence[int]) -> str:
        if self._strip != "none":
            return "".join([self.piece(token) for token in tokens])
        data = self._pending + b"".join([self._lookup(token) for token in tokens])
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        text = codecs.utf_8_decode(self._pending, "replace", True)[0]
        self._pending = b""
        return text

    def _without_leading_space(self, data: bytes) -> bytes:
        every, self._strip = self._strip == "all", "none"
        if every:
            return data.replace(b" ", b"")
        return data[1:] if data[:1] == b" " else data


class WindowDecoder:
    """TextDecoder for any decoder: the text of a few ids, with and without the next one."""

    def __init__(self, inner: tokenizers.Tokenizer, before: Sequence[int]) -> None:
        self._inner = inner
        self._ids = list(before[-CONTEXT_IDS:])
        self._final = len(self._ids)  # ids whose text was given out
        self._said = self._decode()

    def piece(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode()
        if text.endswith("\ufffd") and len(self._ids) - self._final < HELD_IDS:
            return ""
        return self._give(text)

    def pieces(self, tokens: Sequence[int]) -> str:
        return "".join([self.piece(token) for token in tokens])

    def flush(self) -> str:
        return self._give(self._decode())

    def _give(self, text: str) -> str:
        delta = text[len(self._said) :]
        del self._ids[:-CONTEXT_IDS]
        self._final = len(self._ids)
        self._said = self._decode()
        return delta

    def _decode(self) -> str:
        known = [id_ for id_ in self._ids if id_ >= 0]
        text: str = self._inner.decode(known, skip_special_tokens=True)
        return text


def check_text(text: str, where: str) -> None:
    """Raise PromptError for a lone surrogate, which no tokenizer and no UTF-8 output can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise PromptError(
            f"{where}: character {exc.start} is a lone surrogate (U+{ord(text[exc.start]):04X}), "
            "which is not text; decode the input as UTF-8 before passing it on"
        ) from None


@dataclass(frozen=True)
class _Scheme:
    """How a tokenizer.json's `decoder` makes text of tokens, where bytes in a table suffice."""

    kind: Literal["bytes", "spaces"]
    byte_tokens: bool = False  # <0x0A> is one byte
    strip: Literal["none", "one", "all"] = "none"  # spaces of the text's first token


def _scheme(decoder: dict[str, Any]) -> _Scheme | None:
    """None: not one of the decoders that a table can stand for."""
    if decoder.get("type") == "ByteLevel":
        return _Scheme("bytes")
    if decoder.get("type") == "Metaspace" and decoder.get("replacement") == SPACE:
        return _Scheme("spaces", strip="none" if _never_prepends(decoder) else "all")
    if decoder.get("type") != "Sequence":
        return None
    steps = list(decoder.get("decoders") or [])
    if len(steps) == 1:
        return _scheme(steps[0])
    wanted: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if steps[:3] != wanted:
        return None
    if not steps[3:]:
        return _Scheme("spaces", byte_tokens=True)
    if steps[3:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
        return _Scheme("spaces", byte_tokens=True, strip="one")
    return None


def _never_prepends(decoder: dict[str, Any]) -> bool:
    if "prepend_scheme" in decoder:
        return bool(decoder["prepend_scheme"] == "never")
    return decoder.get("add_prefix_space") is False


def _byte_alphabet() -> dict[str, int]:
    """Character to byte of byte-level BPE: printable Latin-1 as itself, the rest from U+0100 on."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in itself)
    return {chr(byte): byte for byte in itself} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()
