"""The words that a reader of the page may not know."""

from __future__ import annotations

TERMS = (
    (
        "Plain decoding",
        "The target model alone, one token a step. Every speed on this page is over it, so 1.00x "
        "is no gain.",
    ),
    (
        "Speculation",
        "Somebody cheaper guesses the next tokens, and the target checks all of them in one call. "
        "The text stays the same; only the speed changes.",
    ),
    (
        "Proposer",
        "Who guesses: “draft”, a smaller model, or a lookup such as “ngram”, which copies what "
        "followed the same words earlier in the text and costs next to nothing.",
    ),
    ("K", "How many tokens are guessed in one round."),
    ("N, P", "New tokens in one call (K guesses need a call of N = K + 1), after P cached tokens."),
    (
        "T(N)",
        "Milliseconds of one call of the target with N new tokens. Where it rises slowly, checking "
        "guesses is cheap.",
    ),
    ("Acceptance rate", "Share of the guessed tokens that the target would have written itself."),
    (
        "Acceptance length",
        "Tokens that a round adds to the text: those accepted and one of the target’s own.",
    ),
    ("Survival", "Chance that all tokens of a draft up to a place are right."),
    (
        "90% interval",
        "The range in which the true value lies nine times out of ten. No interval: too few "
        "prompts to state one.",
    ),
    (
        "Margin",
        "The least gain for which speculation is switched on. A proposer is ruled out when no "
        "workload can reach it.",
    ),
    (
        "Open",
        "The measurement could not tell. The controller tries it while running, within a small "
        "budget of time, and keeps what pays.",
    ),
)
