"""The tabs of the page: one file each, and what they share."""
