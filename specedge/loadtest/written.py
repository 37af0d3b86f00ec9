"""Findings as JSON can hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel


def written(value: Any) -> Any:
    """Dataclasses and models as objects by field name, sequences as lists; the rest as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: written(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): written(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [written(each) for each in value]
    return value
