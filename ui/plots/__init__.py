"""Plotly figures as plain dicts: pure functions."""
