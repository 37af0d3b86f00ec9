"""Tokenizer and chat template: whether they are the ones that the graphs were made for.

Checked by the manifest, by reading `tokenizer.json` without the tokenizers library, and by asking
the library that a run uses.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from specedge.contract import Ids
from specedge.desk import Desk
from specedge.errors import PromptError
from specedge.gates.checked import Checked
from specedge.template import Message
from specedge.vocabulary import read_vocabulary, vocabulary_hash

GENERATION = "generation.json"
AGAIN = "export the bundle again"
# Composed characters without compatibility forms: a normaliser of Unicode leaves them alone.
TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Naïve café, 東京, Привет, שלום, 🙂🚀",
    "def f(x):\n\treturn {'a': [x, 1.5e-3]}  # two  spaces\n",
    "  begins with two spaces and ends with one ",
)
CONVERSATION: tuple[Message, ...] = (
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Grüße aus 京都 🙂"},
    {"role": "assistant", "content": "Hello.\nLine two: 3 < 4."},
    {"role": "user", "content": "And now?"},
)


def vocabulary(desk: Desk) -> Checked:
    """Ids and tokens are those of the export, and those that the target has."""
    spec, vocab = desk.bundle.manifest.tokenizer, desk.bundle.manifest.target.vocab
    written = desk.bundle.tokenizer_json
    known = read_vocabulary(written)
    faults, notes = [], []
    found = vocabulary_hash(written)
    if found != spec.vocabulary_hash:
        faults.append(
            f"tokenizer.json: tokens hash to {found}, expected {spec.vocabulary_hash} as in the "
            f"manifest; {AGAIN}"
        )
    if spec.vocab != vocab:
        faults.append(f"manifest: the tokenizer has {spec.vocab} ids, the target {vocab}; {AGAIN}")
    wrong = next((i for i, token in known.items() if desk.model.tokenizer.token(i) != token), None)
    if wrong is not None:
        faults.append(
            f"tokenizer.json: id {wrong} is {known[wrong]!r} in the file, "
            f"{desk.model.tokenizer.token(wrong)!r} for the tokenizers library; {AGAIN}"
        )
    beyond = [i for i in known if i >= vocab]
    if beyond:
        notes.append(
            f"{len(beyond)} tokens have no row in the target, first {known[beyond[0]]!r} (id "
            f"{beyond[0]}): a prompt with one of them is refused"
        )
    unnamed = vocab - (len(known) - len(beyond))
    if unnamed:
        notes.append(f"{unnamed} ids of the target have no token: they add nothing to a text")
    figures = {"vocab": vocab, "tokens": len(known), "hash": found}
    return Checked(f"{len(known):,} tokens as exported, {vocab:,} ids", faults, figures, notes)


def special_tokens(desk: Desk) -> Checked:
    """Ids with a role are special tokens of the tokenizer, and each is one id in a prompt."""
    spec, tokenizer = desk.bundle.manifest.tokenizer, desk.model.tokenizer
    vocab, special = desk.bundle.manifest.target.vocab, tokenizer.special_tokens()
    roles = [("end-of-text", id_) for id_ in spec.eos_ids]
    roles += [("begin-of-text", spec.bos_id)] if spec.bos_id is not None else []
    roles += [("padding", spec.pad_id)] if spec.pad_id is not None else []
    faults = [fault for fault in (_role_fault(desk, role, id_) for role, id_ in roles) if fault]
    if not spec.eos_ids:
        faults.append(f"manifest: no end-of-text id, so no text would ever end; {AGAIN}")
    if spec.adds_bos and spec.bos_id is None:
        faults.append(f"manifest: prompts begin with an id that is not given (bos_id); {AGAIN}")
    for token, id_ in special.items():
        ids = tokenizer.encode(token, add_special=False).tolist()
        if id_ < vocab and ids != [id_]:
            faults.append(
                f"tokenizer: the special token {token!r} (id {id_}) is read as {ids[:8]}; a "
                f"template that writes it would say something else; {AGAIN}"
            )
            break
    faults += _missing_ends(desk, spec.eos_ids)
    named = ", ".join(f"{tokenizer.token(id_)!r} ({id_})" for id_ in spec.eos_ids)
    figures = {
        "bos_id": spec.bos_id,
        "eos_ids": list(spec.eos_ids),
        "pad_id": spec.pad_id,
        "special": len(special),
    }
    return Checked(f"{len(special)} special tokens; a text ends by {named}", faults, figures)


def _role_fault(desk: Desk, role: str, id_: int) -> str | None:
    tokenizer, vocab = desk.model.tokenizer, desk.bundle.manifest.target.vocab
    if id_ >= vocab:
        return f"manifest: {role} id {id_}, expected 0..{vocab - 1}; {AGAIN}"
    token = tokenizer.token(id_)
    if token is None:
        return f"manifest: {role} id {id_} has no token; {AGAIN}"
    if tokenizer.special_tokens().get(token) != id_:
        return (
            f"manifest: {role} id {id_} is {token!r}, which the tokenizer does not call special; "
            f"{AGAIN}"
        )
    return None


def _missing_ends(desk: Desk, eos_ids: Collection[int]) -> list[str]:
    """What the checkpoint's own defaults end a text with must end it here."""
    try:
        said = json.loads((desk.bundle.path / GENERATION).read_bytes())
    except (OSError, ValueError):
        return []
    wanted = said.get("eos_token_id") if isinstance(said, dict) else None
    ids = wanted if isinstance(wanted, list) else [wanted]
    missing = [id_ for id_ in ids if isinstance(id_, int) and id_ not in eos_ids]
    if not missing:
        return []
    return [
        f"{GENERATION}: the checkpoint ends a text by id {missing[0]}, the manifest only by "
        f"{sorted(eos_ids)}; {AGAIN}"
    ]


def text(desk: Desk) -> Checked:
    """Plain text comes back from its ids, at once and token by token."""
    tokenizer, vocab = desk.model.tokenizer, desk.bundle.manifest.target.vocab
    faults, count = [], 0
    for sample in TEXTS:
        ids = tokenizer.encode(sample, add_special=False)
        count += len(ids)
        faults += _outside(ids, vocab, repr(sample))
        decoder = tokenizer.stream()
        for way, found in (
            ("decoded", tokenizer.decode(ids)),
            ("streamed", decoder.pieces(ids.tolist()) + decoder.flush()),
        ):
            if found != sample:
                faults.append(
                    f"tokenizer: {sample!r} comes back {way} as {found!r}; texts with such "
                    "characters are not what the model said"
                )
    return Checked(f"{len(TEXTS)} texts come back unchanged", faults, {"tokens": count})


def template(desk: Desk) -> Checked:
    """A conversation can be rendered, and the model reads all of it.

    Raises:
        PromptError: the template is broken, or refuses the conversation.
    """
    model, spec = desk.model, desk.bundle.manifest.tokenizer
    if not model.has_chat_template:
        return Checked("no chat template: plain prompts only", applies=False)
    notes = []
    messages: tuple[Message, ...] = CONVERSATION
    try:
        ids, rendered = model.encode(messages)
    except PromptError as error:
        messages = CONVERSATION[1:]
        ids, rendered = model.encode(messages)
        notes.append(f"a system message is refused: {error}")
    faults = _outside(ids, desk.bundle.manifest.target.vocab, "the sample conversation")
    back = model.tokenizer.decode(ids)
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system" and content not in rendered:
            notes.append("the template leaves the system message out")
        elif content not in rendered:
            faults.append(
                f"chat_template.jinja: the {role}'s {content!r} is not in what it renders: "
                f"{rendered[:80]!r}; {AGAIN}, or use plain prompts"
            )
        elif content not in back:
            faults.append(
                f"chat template: the {role}'s {content!r} does not come back from the ids: "
                f"{back[:80]!r}; {AGAIN}, or use plain prompts"
            )
    if not set(ids.tolist()) & set(spec.eos_ids):
        notes.append(
            "the template ends an assistant's turn by none of the end-of-text ids: check that "
            "answers end"
        )
    if spec.adds_bos and ids[0] != spec.bos_id:
        notes.append("plain prompts begin with the begin-of-text token, conversations do not")
    figures = {"messages": len(messages), "tokens": len(ids), "characters": len(rendered)}
    said = f"{len(messages)} messages make {len(ids)} ids, and all they say comes back"
    return Checked(said, faults, figures, notes)


def _outside(ids: Ids, vocab: int, what: str) -> list[str]:
    if not len(ids):
        return [f"tokenizer: {what} makes no ids; {AGAIN}"]
    top = int(ids.max())
    if top < vocab:
        return []
    return [f"tokenizer: {what} has id {top}, expected 0..{vocab - 1}; {AGAIN}"]
