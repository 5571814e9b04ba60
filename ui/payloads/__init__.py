"""From runs to the plain data that components draw: pure functions, one file per tab or view."""
