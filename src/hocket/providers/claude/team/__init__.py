"""The Claude CLI as the lead of a team: its terminal, its files and its hooks."""
