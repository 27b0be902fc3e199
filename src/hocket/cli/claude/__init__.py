"""What belongs to sessions of the Claude CLI that call Hocket: the hook, and its place in the user's settings."""
