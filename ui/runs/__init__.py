"""Runs of a visitor and what they came to: state without widgets, and what is computed from events."""
