"""Go or no-go before a rollout: what `specedge verify` checks.

findings       cases, gates, the verdict
"""
