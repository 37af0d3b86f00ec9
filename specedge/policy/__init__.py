"""Whether to draft, with whom and how much: decided each round from costs and from what stood.

survival   how far a draft stands, with its uncertainty
pace       how fast this machine is now, against its cost curve
account    what speculation has cost over plain decoding, and what it may still cost
arm        one way to draft: its survival, its rests, its goodput
policy     the choice

Pure Python without a clock, an engine or numpy: times come in with `observe`.
"""

from specedge.policy.account import Account
from specedge.policy.choice import Choice
from specedge.policy.pace import Pace
from specedge.policy.policy import Candidate, Policy
from specedge.policy.survival import Prior, Survival

__all__ = ["Account", "Candidate", "Choice", "Pace", "Policy", "Prior", "Survival"]
