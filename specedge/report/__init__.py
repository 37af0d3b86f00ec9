"""A probe's record as one HTML page that needs nothing else: no network, no script, no file.

page       the whole page, section by section
verdicts   the decision, for each proposer and workload class
costs, survival, gains    the three figures
figures    what figures share: frame, caption, table
charts, scales    SVG and where things stand in it
summary, words    sentences and numbers, which the terminal's tables use too
markup, style, writing    escaping, appearance, the file
"""

from specedge.report.page import Page, render
from specedge.report.writing import write

__all__ = ["Page", "render", "write"]
