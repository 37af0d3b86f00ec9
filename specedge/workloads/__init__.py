"""Prompts by class, on which a probe finds out where speculation pays.

workload   `Workload` and `WorkloadPrompt`, and whether a prompt fits a context
reading    the built-in prompts (`data/*.jsonl`) and a user's own file → workloads

Nothing is read before it is asked for.
"""

from __future__ import annotations

from specedge.workloads.reading import builtin, read
from specedge.workloads.workload import Workload, WorkloadPrompt, fits

__all__ = ["Workload", "WorkloadPrompt", "builtin", "fits", "read"]
