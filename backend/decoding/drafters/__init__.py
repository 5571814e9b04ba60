"""Where drafted tokens come from: one small file per source."""
