"""Who guesses the next tokens: a smaller model, or a lookup in the text."""

from specedge.proposers.base import NO_DRAFT, Draft, Proposer
from specedge.proposers.draft_model import DraftModelProposer
from specedge.proposers.ngram import NgramProposer

__all__ = ["NO_DRAFT", "Draft", "DraftModelProposer", "NgramProposer", "Proposer"]
