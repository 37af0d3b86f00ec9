"""What was found as one HTML page that needs nothing else: no network, no script, no file.

    page                     a probe's record, section by section:
      headline, verdicts     the decision: in one sentence, then by workload and proposer
      costs, survival, gains the three figures
      conditions, glossary   energy, steadiness, fingerprint; what the words mean
      summary                sentences that the terminal's tables use too
    verification             gate by gate what `specedge verify` found:
      verify_figures         figures of any gate, by what they are
      verify_words           sentences that the terminal's tables use too
    benchmark                what `specedge bench` measured:
      bench_sections         below its verdict, section by section
      bench_plots            charts
      bench_tables           tables
    document                 what every page has
    figures, charts, scales  what figures share; SVG, and where things stand in it
    markup, style, writing   escaping, appearance, the file

The same record, verification or result gives the same page, byte for byte.
"""

from specedge.report.page import Page, render
from specedge.report.writing import write

__all__ = ["Page", "render", "write"]
