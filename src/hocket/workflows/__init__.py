"""Many processes: binding requests, driving chains and loops, gates, budgets, worktrees and resuming."""
