"""Whether to draft, with whom and how much: decided each round from costs and from what stood.

survival   how far a draft stands, with its uncertainty
pace       how fast this machine is now, against its cost curve
account    what speculation has cost over plain decoding, and what it may still cost
arm        one way to draft: its survival, its rests, its goodput
joint      what time is worth over all rounds, and the best way to go on
market     the bids of a round
policy     the choice
priors     what a probe's findings say before the first round

Pure Python without a clock, an engine or numpy: times come in with `observe`.
"""

from specedge.policy.account import Account
from specedge.policy.choice import Choice
from specedge.policy.market import Candidate
from specedge.policy.pace import Pace
from specedge.policy.policy import Policy
from specedge.policy.survival import Prior, Survival

__all__ = ["Account", "Candidate", "Choice", "Pace", "Policy", "Prior", "Survival"]
