"""One file per tab: widgets first, then their wiring."""
