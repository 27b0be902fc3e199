"""Chains: their text, the decision what comes next, and the variables of their prompts. Pure."""
