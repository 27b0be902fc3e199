"""What belongs to ``hocket attach`` alone: the terminal of a run, shown in the user's own."""
