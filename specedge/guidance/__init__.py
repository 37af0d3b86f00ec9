"""Structured output: grammars over tokens, through the extra [guidance]. docs/structured.md.

grammar      what a request asks for, as text
compiling    by llguidance, for one tokenizer; spelling: a tokenizer for it that keeps text text
constraint   one output's place in a grammar
drafting     tokens without alternative; lookups cut where the grammar does not go on
"""
