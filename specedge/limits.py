"""Ranges of what a request may ask for: options, configs and manifests are checked against these.

A range is from its first to its last name, both included, unless it says otherwise.
"""

from __future__ import annotations

from typing import Final

MIN_TEMPERATURE: Final = 1e-6  # below it, and not 0, logits would overflow when divided
MAX_TEMPERATURE: Final = 100.0
MAX_TOP_K: Final = (1 << 31) - 1
MIN_TOP_P: Final = 0.0  # excluded: nothing would be kept
MAX_TOP_P: Final = 1.0
MIN_MIN_P: Final = 0.0
MAX_MIN_P: Final = 1.0
MIN_REPETITION: Final = 0.01
MAX_REPETITION: Final = 100.0
MIN_PENALTY: Final = -2.0  # frequency and presence
MAX_PENALTY: Final = 2.0
MAX_BIAS: Final = 100.0  # either way
MAX_BIASED: Final = 1024  # entries
MIN_MARGIN: Final = 1.0
MAX_MARGIN: Final = 10.0
MARGIN: Final = 1.03  # speed over plain under which speculation is not worth it
MAX_VERIFY: Final = 512
MAX_SEED: Final = (1 << 64) - 1
MAX_SAMPLES: Final = 64
MAX_ID: Final = (1 << 31) - 1  # where no vocabulary says less


def shown(value: object) -> str:
    """A value for an error line: on one line, and whole unless nobody would read it."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # more digits than Python writes out
        return "a number of thousands of digits"
    except Exception:  # a repr of the caller's own, or lists nested too deeply
        return f"a {type(value).__name__} that cannot be written out"
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"
