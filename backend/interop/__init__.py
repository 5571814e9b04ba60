"""Settings as code for other engines, and their settings read into ours."""
