"""A probe's record as one HTML page that needs nothing else: no network, no script, no file.

    page                     the whole page, section by section
    headline, verdicts       the decision: in one sentence, then by workload and proposer
    costs, survival, gains   the three figures
    conditions, glossary     energy, steadiness, fingerprint; what the words mean
    figures, charts, scales  what figures share; SVG, and where things stand in it
    summary, words           sentences and numbers, which the terminal's tables use too
    markup, style, writing   escaping, appearance, the file

The same record gives the same page, byte for byte.
"""

from specedge.report.page import Page, render
from specedge.report.writing import write

__all__ = ["Page", "render", "write"]
