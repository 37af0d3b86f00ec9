"""Grammars to constraints on token ids, by llguidance; imported where one is asked for.

llguidance builds a lexer and an Earley parser over bytes, and masks the tokens whose bytes go on
well (Geng et al., 2023, "Grammar-constrained decoding"; Koo et al., 2024, "Automata-based
constraints for language model decoding").
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from specedge.errors import OptionError
from specedge.guidance.constraint import GrammarConstraint, one_line, trouble
from specedge.guidance.grammar import Grammar, Kind
from specedge.guidance.spelling import concealed, named_by_id

if TYPE_CHECKING:
    from specedge.bundle import Bundle

_REMEDY: dict[Kind, str] = {
    "json_schema": "; leave that out of the schema, or write it in another way",
    "regex": "; expected a pattern as Rust's regex crate reads it",
    "grammar": "; expected a Lark grammar that begins at `start`",
}
KEPT = 32  # compiled grammars
LONGEST_S = 20.0  # for the first token of a grammar; 10,000 properties take some seconds
# One form of every value, as json.dumps writes it: free whitespace can go on for ever, and a
# schema's own "x-guidance" may still ask for it.
JSON_STYLE = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


class Guidance:
    """Compiles for one tokenizer.

    Args:
        tokenizer_json: content of `tokenizer.json`.
        vocab: V of the logits.
        eos_ids: any of them may end the output where the grammar allows it to end.

    Raises:
        OptionError: llguidance is not installed or does not take the tokenizer, or no id ends an
            output.
    """

    def __init__(self, tokenizer_json: str, vocab: int, eos_ids: Iterable[int]) -> None:
        try:
            import llguidance
        except ImportError:
            raise OptionError(
                "structured output needs llguidance, which is not installed; "
                "pip install 'specedge[guidance]'"
            ) from None
        ends = [id_ for id_ in eos_ids if 0 <= id_ < vocab]
        if not ends:
            raise OptionError(
                "structured output needs an id that ends the output, and this bundle's tokenizer "
                "names none; export it again from a checkpoint that has one"
            )
        self._matcher: Any = llguidance.LLMatcher
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        self._vocab = vocab
        self._ends = tuple(ends)
        try:
            text, self._special = concealed(tokenizer_json)
            self._tokenizer = llguidance.LLTokenizer(text, n_vocab=vocab, eos_token=ends)
        except Exception as error:  # the library raises whatever its tokenizer code does
            raise OptionError(
                f"structured output: llguidance cannot read this tokenizer: {one_line(error)}"
            ) from error
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()

    @classmethod
    def of(cls, bundle: Bundle) -> Guidance:
        """For a bundle's target."""
        manifest = bundle.manifest
        return cls(bundle.tokenizer_json, manifest.target.vocab, manifest.tokenizer.eos_ids)

    def check(self, grammar: Grammar) -> None:
        """Compile it, or find it compiled. Raises OptionError with the first thing wrong."""
        self._start(grammar)

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """At the beginning of an output. Raises what `check` raises."""
        matcher = self._start(grammar).deep_copy()
        return GrammarConstraint(matcher, self._vocab, self._ends, grammar.kind)

    def _start(self, grammar: Grammar) -> Any:
        """A matcher that has consumed nothing; it is copied, never used."""
        found = self._compiled.pop(grammar, None)  # in one step, for the sake of other threads
        if found is not None:
            self._compiled[grammar] = found
            return found
        source = self._source(grammar)
        limits = self._limits
        wrong, said = self._matcher.validate_grammar_with_warnings(
            source, self._tokenizer, limits=limits
        )
        if wrong:
            raise OptionError(f"{grammar.kind}: {one_line(said[0])}{_REMEDY[grammar.kind]}")
        matcher = self._matcher(self._tokenizer, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise OptionError(f"{grammar.kind}: {one_line(matcher.get_error())}")
        self._try(matcher.deep_copy(), grammar.kind)
        self._compiled[grammar] = matcher
        while len(self._compiled) > KEPT:
            self._compiled.popitem(last=False)
        return matcher

    def _try(self, matcher: Any, kind: str) -> None:
        """What the first token will need, so that it is refused now and not in the middle."""
        found: list[bytes] = []
        # A rule without an end may have it look for one for ever; it lets other threads run then.
        look = threading.Thread(target=lambda: found.append(matcher.compute_bitmask()), daemon=True)
        look.start()
        look.join(LONGEST_S)
        if not found:
            raise OptionError(
                f"{kind}: no output that begins like this was found in {LONGEST_S:g} s; see to it "
                "that every rule has an end, or use a simpler one"
            )
        packed = np.frombuffer(found[0], np.uint8)
        if matcher.is_error():
            raise OptionError(f"{kind}: no output can begin like this: {trouble(matcher)}")
        allowed = np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
        token = next((id_ for id_ in allowed if id_ not in self._ends), None)
        if token is None:
            return
        if not matcher.consume_token(token):
            raise OptionError(f"{kind}: no output can go on like this: {trouble(matcher)}")
        if not matcher.rollback(1):
            raise OptionError(f"{kind}: drafts cannot be taken back from it: {trouble(matcher)}")

    def _source(self, grammar: Grammar) -> str:
        made: str
        try:
            if grammar.kind == "json_schema":
                made = self._matcher.grammar_from_json_schema(grammar.text, defaults=JSON_STYLE)
            elif grammar.kind == "regex":
                made = self._matcher.grammar_from_regex(grammar.text)
            else:
                made = self._matcher.grammar_from_lark(named_by_id(grammar.text, self._special))
        except ValueError as error:
            raise OptionError(f"{grammar.kind}: {one_line(error)}") from None
        return made
