"""Tasks and schemas of our own, as package data."""
