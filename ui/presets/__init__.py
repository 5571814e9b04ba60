"""What presets/ holds, read and checked on load."""
