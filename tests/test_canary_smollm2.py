"""A canary on a real model and its draft: equal tokens, times of both ways, nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest

import specedge
from specedge import keeping
from tests.real import PROMPTS

pytestmark = pytest.mark.model


def test_a_real_model_says_the_same_both_ways(selfdraft, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "folders", lambda bundle, kind: [tmp_path / kind])
    options: dict[str, Any] = {"speculation": "on", "draft_length": 3, "context": 128}
    with specedge.load(selfdraft, canary=1.0, verify=False, **options) as model:
        chosen: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}
        said = [
            model.generate(PROMPTS["repetition"], **chosen),
            model.generate(PROMPTS["repetition"], temperature=0.8, seed=5, **chosen),
        ]
        assert model.canary is not None
        record = model.canary.record
    assert [each.tokens for each in record.last] == ["equal", "equal"]
    assert record.totals.timed == sum(result.metrics.proposed > 0 for result in said) > 0
    assert all(each.plain_ms and each.spec_ms for each in record.last)
    assert record.totals.failures == 0
