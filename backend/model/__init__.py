"""Which models there are, and the one place that runs them."""
