"""Every error that specedge raises on purpose.

    SpecedgeError
    ├── ConfigError            a config file, a key or a --set value
    ├── SourceError            a checkpoint that cannot be found, fetched or read
    │   └── UnsupportedError   a family, operator, scaling or quantisation we do not have
    ├── PairingError           this draft cannot serve this target
    ├── MemoryBudgetError      the plan does not fit the budget
    ├── ExportError            the destination, the disk, a check that failed
    ├── BundleError            a bundle that is damaged, altered or too new
    ├── EngineError            a runtime that is missing, misconfigured or failed in a call
    │   └── PlanError          an engine plan that is missing, stale or cannot be built
    ├── ProbeError             a measurement that cannot be made or kept
    ├── BenchError             a load that cannot be run, kept, read or compared
    ├── PromptError            a prompt that is empty, too long or not text
    ├── OptionError            a generation option that cannot be honoured
    ├── SamplingError          logits that no token can be drawn from
    │   └── DeadEndError       the options leave none
    ├── BusyError              the model is already generating
    └── ProposerError          a proposer failed while speculation was forced on

A message says where, what was expected, what was found and what to do, in one line.
`ShapeError` is a `ValueError` beside the tree: it means a caller broke a contract.
"""

from __future__ import annotations


class SpecedgeError(Exception):
    """Base of the errors a person can act on; the CLI prints the message and exits with 1."""


class ConfigError(SpecedgeError):
    """A config file, a key in it or a `--set` value is wrong."""


class SourceError(SpecedgeError):
    """A checkpoint cannot be found, fetched or read."""


class UnsupportedError(SourceError):
    """The checkpoint is sound but asks for something specedge does not have."""


class PairingError(SpecedgeError):
    """The draft cannot propose tokens for this target."""


class MemoryBudgetError(SpecedgeError):
    """Weights, KV and activations do not fit the budget."""


class ExportError(SpecedgeError):
    """An export could not be written, or failed one of its own checks."""


class BundleError(SpecedgeError):
    """A bundle is damaged, was altered, or has a newer schema."""


class EngineError(SpecedgeError):
    """An engine is not installed, cannot load a graph, or failed in a call."""


class PlanError(EngineError):
    """A plan (a compiled engine) is missing, stale, of another device, or cannot be built."""


class ProbeError(SpecedgeError):
    """Costs cannot be measured, or a measurement cannot be kept."""


class BenchError(SpecedgeError):
    """A load cannot be run, or its result cannot be kept, read or compared."""


class PromptError(SpecedgeError):
    """A prompt is empty, too long or not text."""


class OptionError(SpecedgeError):
    """A generation option has a value, or is in a combination, that cannot be honoured."""


class SamplingError(SpecedgeError):
    """Logits are not finite, or nothing is left to draw a token from."""


class DeadEndError(SamplingError):
    """What a request asks for leaves no token to draw: banned ones, say, where a grammar allows no
    other. A draft ends there; the output cannot."""


class BusyError(SpecedgeError):
    """The model is already generating; it serves one request at a time."""


class ProposerError(SpecedgeError):
    """A proposer failed while `speculation="on"` forbids falling back to plain decoding."""


class ShapeError(ValueError):
    """An array does not have the shape the contract asks for."""


def one_line(error: BaseException) -> str:
    """What an error says, on one line; the name of its class where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def with_class(error: BaseException) -> str:
    """The same of an error that is not ours, which says little without its class."""
    said, name = one_line(error), type(error).__name__
    return said if said == name else f"{name}: {said}"
