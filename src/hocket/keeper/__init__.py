"""Keeps runs alive independently of the server.

This package owns every fork, exec and signal of Hocket: the keeper that outlives the server, the zygote that
forks keepers, the process tree and its sweep, the detached start of the server, and helper programs. It knows
nothing of agents, providers, events or the database: a run is a directory with a `spec.json` here.

Nothing is imported at this level on purpose: the zygote must stay small and the command line fast, so both
import the one module they need.
"""
