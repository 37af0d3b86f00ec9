"""Whether the parts of a bundle fit each other and the engines that run them.

Nothing is believed because the manifest says it: files are hashed again, the tokenizer is read and
asked, and the open engines are called. What only the export could see, the draft's own tokenizer,
is held against the record of that comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from specedge.contract import MANIFEST, GraphSpec, rope_rows
from specedge.desk import Desk
from specedge.engines import matching
from specedge.engines.base import Engine
from specedge.errors import BundleError, SpecedgeError, one_line
from specedge.gates import spelling
from specedge.gates.checked import Checked
from specedge.gates.findings import Gate, Report
from specedge.gates.prompts import Asked
from specedge.vocabulary import read_vocabulary

NAME = "compatibility"
TITLE = "Bundle, draft and engines fit together"
AGAIN = spelling.AGAIN
NO_DRAFT = "no draft model in the bundle"
BYTES_PER_PARAMETER = {
    "fp32": (4.0, 4.0),
    "fp16": (2.0, 4.0),
    "bf16": (2.0, 4.0),
    "int8": (1.0, 4.0),
    "int4": (0.5, 4.0),
}
"""Least and most. Embeddings and norms of narrower weights may be wider, so the most is loose."""
QUANTISED = {"ort": b"MatMulNBits", "standard": b"DequantizeLinear"}
"""The operator of int8 and int4 layers, by lowering."""


def check(desk: Desk, prompts: Sequence[Asked], *, report: Report) -> Gate:
    """Every check, whatever the others found; `prompts` are not needed."""
    began = perf_counter()
    cases, notes = [], []
    for place, (name, ask) in enumerate(CHECKS.items()):
        report(name, place / len(CHECKS))
        started = perf_counter()
        try:
            answer = ask(desk)
        except SpecedgeError as error:
            answer = Checked("", [one_line(error)])
        cases.append(answer.case(name, perf_counter() - started))
        notes += [f"{name}: {note}" for note in answer.notes]
    report(cases[-1].name, 1.0)
    failed = [case for case in cases if case.outcome == "failed"]
    passed = sum(case.outcome == "passed" for case in cases)
    skipped = [case.name for case in cases if case.outcome == "skipped"]
    figures = {"passed": passed, "failed": len(failed), "skipped": skipped}
    said = f"{passed} of {passed + len(failed)} checks hold"
    if failed:
        said = f"{said}; {failed[0].name}: {failed[0].said}"
    elif skipped:
        said = f"{said} (does not apply: {', '.join(skipped)})"
    return Gate(NAME, TITLE, said, cases, perf_counter() - began, figures, notes)


def _graphs(desk: Desk) -> list[GraphSpec]:
    manifest = desk.bundle.manifest
    return [manifest.target] if manifest.draft is None else [manifest.target, manifest.draft]


def files(desk: Desk) -> Checked:
    """Every file has the bytes that the manifest lists, read again, and so has the manifest."""
    bundle = desk.bundle
    faults, size = [], 0
    try:
        now = hashlib.sha256((bundle.path / MANIFEST).read_bytes()).hexdigest()
        if now != bundle.hash:
            faults.append(f"{MANIFEST}: changed since it was opened; verify again")
        for name, record in bundle.manifest.files.items():
            with (bundle.path / name).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            size += record.bytes
            if found != record.sha256:
                faults.append(f"{name}: sha256 {found}, expected {record.sha256}; {AGAIN}")
    except OSError as error:
        raise BundleError(f"{error.filename}: cannot be read: {error.strerror}; {AGAIN}") from error
    count = len(bundle.manifest.files)
    figures = {"files": count, "bytes": size, "bundle": bundle.hash}
    return Checked(f"{count} files of {size:,} bytes are those of the export", faults, figures)


def draft_vocabulary(desk: Desk) -> Checked:
    """The draft's ids mean what the target's do."""
    manifest = desk.bundle.manifest
    draft, target, proof = manifest.draft, manifest.target, manifest.pairing
    if draft is None:
        return Checked(NO_DRAFT, applies=False)
    faults = []
    if draft.vocab != target.vocab:
        faults.append(f"manifest: the draft has {draft.vocab} ids, the target {target.vocab}")
    tokens = len(read_vocabulary(desk.bundle.tokenizer_json))
    if proof is None:
        faults.append("manifest: the tokenizers' comparison is not recorded")
    elif not proof.usable or proof.first_difference is not None:
        where = proof.first_difference
        faults.append(f"manifest: the tokenizers were found to differ, first at id {where}")
    elif proof.compared_ids != tokens:
        faults.append(
            f"manifest: {proof.compared_ids} tokens were compared, the tokenizer has {tokens}"
        )
    elif min(proof.target_padded_to, proof.draft_padded_to) < target.vocab:
        faults.append(
            f"manifest: embeddings of {proof.target_padded_to} and {proof.draft_padded_to} rows, "
            f"expected {target.vocab} or more"
        )
    faults = [f"{fault}; {AGAIN}, or without the draft" for fault in faults]
    notes = [] if proof is None else list(proof.notes)
    if desk.draft_engine is None:
        notes.append("the draft is not open here")
    said = f"{tokens:,} tokens compared at the export, {draft.vocab:,} ids on both sides"
    return Checked(said, faults, {"compared": proof and proof.compared_ids}, notes)


def contexts(desk: Desk) -> Checked:
    """Rows of both models' KV, as they are allocated here."""
    manifest, rows = desk.bundle.manifest, desk.model.context
    faults, notes = [], []
    if rows != desk.opener.context or rows > manifest.target.context:
        faults.append(
            f"target: {rows} rows of KV, expected {desk.opener.context} of at most "
            f"{manifest.target.context}"
        )
    said, figures = f"{rows:,} tokens", {"target": rows, "exported": manifest.target.context}
    if manifest.draft is not None:
        own = min(rows, manifest.draft.context)
        figures["draft"] = own
        said = f"target {rows:,} tokens, draft {own:,}"
        if own < rows:
            notes.append(f"past {own:,} tokens the draft rests, and decoding goes on without it")
    return Checked(said, faults, figures, notes)


def precision(desk: Desk) -> Checked:
    """Weights are as wide as the manifest says, by their size and by the graph's operators."""
    faults, said, notes = [], [], []
    figures: dict[str, dict[str, str | int]] = {}
    for spec in _graphs(desk):
        listed = desk.bundle.manifest.files[spec.weights].bytes
        least, most = BYTES_PER_PARAMETER[spec.precision]
        # rotary tables are stored with the weights and are no parameters
        spare = 2 * 4 * rope_rows(spec.context) * spec.head_dim
        if listed != spec.weight_bytes:
            faults.append(
                f"{spec.weights}: {listed} bytes are listed, the {spec.role} says "
                f"{spec.weight_bytes}; {AGAIN}"
            )
        if not least * spec.parameters <= listed <= most * spec.parameters + spare:
            faults.append(
                f"{spec.weights}: {listed / max(1, spec.parameters):.2f} bytes a parameter, "
                f"expected {least:g} to {most:g} of {spec.precision}; {AGAIN}"
            )
        faults += _operator_faults(desk, spec)
        record = desk.bundle.manifest.quality.get(spec.role)
        if record is not None:
            notes.append(
                f"{spec.role}, {spec.precision}: {record.method} {record.value:.3g} against fp32, "
                "measured at the export"
            )
        said.append(f"{spec.role} {spec.precision}")
        figures[spec.role] = {"precision": spec.precision, "bytes": listed}
    return Checked(", ".join(said), faults, figures, notes)


def _operator_faults(desk: Desk, spec: GraphSpec) -> list[str]:
    operator = QUANTISED.get(spec.lowering)
    if operator is None or desk.opener.engine == "fake":  # whose graphs are rules
        return []
    try:
        has = operator in (desk.bundle.path / spec.model).read_bytes()
    except OSError as error:
        return [f"{spec.model}: cannot be read: {error.strerror}; {AGAIN}"]
    if has == (spec.precision in ("int8", "int4")):
        return []
    found = "quantised" if has else "no quantised"
    return [f"{spec.model}: {found} layers, expected {spec.precision}; {AGAIN}"]


def engine(desk: Desk) -> Checked:
    """What was asked for is what runs, for both models; nothing fell back in silence."""
    asked, target = desk.opener, desk.model.target
    parts = target.description.split(", ")
    faults, notes = [], []
    if not matching.runs_as(asked.engine, target.description):
        faults.append(f"target: runs on {target.description}, asked for {asked.engine}")
    threads = [part for part in parts if part.endswith("threads")]
    if asked.threads is not None and threads not in ([], [f"{asked.threads} threads"]):
        faults.append(f"target: runs on {target.description}, asked for {asked.threads} threads")
    draft = desk.draft_engine
    if draft is not None and asked.draft_name != asked.target_name:
        if not matching.runs_as(asked.draft_name, draft.description):
            faults.append(f"draft: runs on {draft.description}, asked for {asked.draft_name}")
    elif draft is not None and draft.description != target.description:
        faults.append(f"draft: runs on {draft.description}, the target on {target.description}")
    for each in (target, draft):
        faults += [] if each is None else _provider_faults(each)
    faults = [f"{fault}; run `specedge doctor`" for fault in faults]
    if asked.exact and target.width_noise:
        notes.append(
            f"exact calls were asked for and cannot be had: logits differ by up to "
            f"{target.width_noise:.2g} with the width of a call, whatever it is padded to"
        )
    figures = {
        "engine": target.description,
        "asked": asked.engine,
        "draft_engine": None if draft is None else draft.description,
        "exact": asked.exact,
        "width_step": target.width_step,
        "width_noise": target.width_noise,
    }
    said = target.description
    if draft is not None and draft.description != said:
        said = f"{said}; draft: {draft.description}"
    return Checked(said, faults, figures, notes)


def _provider_faults(engine: Engine) -> list[str]:
    """An engine may have `providers`, what its runtime says it uses; the protocol asks none."""
    providers = getattr(engine, "providers", ())
    parts = engine.description.split(", ")
    if not providers or any(providers[0].lower().startswith(part) for part in parts):
        return []
    return [f"{engine.spec.role}: its runtime uses {providers[0]}, expected {engine.description}"]


def verification(desk: Desk) -> Checked:
    """The widest call runs, and gives the rows that the contract promises."""
    figures = {"max_verify": desk.bundle.manifest.target.max_verify}
    faults = []
    draft = desk.draft_engine
    for each in (desk.model.target, draft):
        faults += [] if each is None else _row_faults(each)
    said = f"calls of up to {desk.longest + 1} tokens, so drafts of up to {desk.longest}"
    return Checked(said, faults, figures)


def _row_faults(engine: Engine) -> list[str]:
    """Of one call, as wide as a verification can be."""
    spec, slot = engine.spec, engine.new_slot()
    try:
        width = min(spec.max_verify, slot.context)
        tokens = (np.arange(width, dtype=np.int64) * 7919) % spec.vocab
        scored = engine.forward(slot, tokens, 0, width)
        if scored.logits.shape != (width, spec.vocab):
            return [
                f"{spec.role}: logits are {list(scored.logits.shape)}, expected "
                f"{[width, spec.vocab]}; {AGAIN}"
            ]
        if not np.isfinite(scored.logits).all():
            return [f"{spec.role}: a logit is not finite; the weights are damaged: {AGAIN}"]
        best = scored.logits.argmax(axis=1)
        wrong = np.flatnonzero(best != scored.greedy_ids)
        if len(wrong):
            row = int(wrong[0])
            return [
                f"{spec.role}: the graph's argmax of row {row} is {int(scored.greedy_ids[row])}, "
                f"expected {int(best[row])}; {AGAIN}"
            ]
        return []
    finally:
        engine.release(slot)


CHECKS: dict[str, Callable[[Desk], Checked]] = {
    "files": files,
    "vocabulary": spelling.vocabulary,
    "special tokens": spelling.special_tokens,
    "text": spelling.text,
    "chat template": spelling.template,
    "draft vocabulary": draft_vocabulary,
    "contexts": contexts,
    "precision": precision,
    "engine": engine,
    "verification": verification,
}
"""By the name of its case, in order."""
