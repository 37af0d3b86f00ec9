"""Structured output: grammars over tokens, through the extra [guidance]."""
