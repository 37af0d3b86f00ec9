"""Go or no-go before a rollout: what `specedge verify` checks. docs/verify.md.

verifying          the gates in their order, on one open bundle; findings: cases, gates, the verdict
prompts, checked   what gates ask; what one check has found, before it becomes a case

compatibility      spelling: tokenizer and chat template
equality           gate "greedy"; parting: where texts part, and whether width noise explains it;
                   scores, certificate: what the runs have come to
distribution       places in real texts, drawing behind them over remembered logits, sampled: the
                   settings, chi_square: the test and its power; coupled: token for token
quality            tasks, judging (in a sandbox, which runs sandboxed), grading, mcnemar
structured         schemas and languages, constrained: outputs held against each other
limits             subject: who is asked; edges, streams, crossing, resident: what is checked

junit              a verification for build servers; its page is specedge.report.verification
"""
