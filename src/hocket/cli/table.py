"""The table of commands: where each is declared, and what it does in a line. It imports none of them."""

from __future__ import annotations

import sys

BROKEN_PIPE = 141
FORKHESTRA = "forkhestra"
"""The other program of ours: ``run`` and nothing else."""

COMMANDS = {
    "run": ("hocket.cli.run:run", "Run a chain and watch it to its end."),
    "spawn": ("hocket.cli.runs:spawn", "Start one agent and come back at once."),
    "ps": ("hocket.cli.runs:ps", "List runs."),
    "agents": ("hocket.cli.agents:agents", "List the agents that can run here, and why."),
    "chains": ("hocket.cli.chains:chains", "List the chains that have a name here."),
    "show": ("hocket.cli.runs:show", "Show everything about one run."),
    "logs": ("hocket.cli.logs:logs", "Print what a run said."),
    "wait": ("hocket.cli.runs:wait", "Wait for a run; ends with its exit code."),
    "send": ("hocket.cli.talk:send", "Say something to a run that listens."),
    "inbox": ("hocket.cli.inbox:inbox", "List what agents ask, and how to answer."),
    "answer": ("hocket.cli.talk:answer", "Answer what a run asks."),
    "ask": ("hocket.cli.inbox:ask", "Ask people something, from inside a run."),
    "resume": ("hocket.cli.talk:resume", "Go on with a run that has ended: a session, or a chain."),
    "stop": ("hocket.cli.runs:stop", "Stop runs with everything they started."),
    "worktrees": ("hocket.cli.worktrees:worktrees", "List what chains have left in worktrees, and tidy up."),
    "task": ("hocket.cli.task:task", "Say what is wanted, and see what came of it."),
    "handoff": ("hocket.cli.handoff:handoff", "Hand a task to an agent; prints its final message alone."),
    "trust": ("hocket.cli.trust:trust", "Approve what a project brings along, by its content."),
    "rehearse": ("hocket.cli.rehearse:rehearse", "Play a chain through by a script, with no account and no cost."),
    "demo": ("hocket.cli.demo:demo", "A tour of a minute, in a folder of its own."),
    "mcp": ("hocket.cli.mcp:mcp", "The MCP server, for agents that start others."),
    "serve": ("hocket.cli.server:serve", "Run the server in the foreground."),
    "server": ("hocket.cli.server:server", "Look at the background server, or stop it."),
    "setup": ("hocket.cli.setup:setup", "Have the server start when you log in."),
    "doctor": ("hocket.cli.doctor:doctor", "Check that Hocket can work here."),
    "completion": ("hocket.cli.completion:completion", "Print the completion script of a shell."),
}


def declared(target: str) -> object:
    """The ``usage.Command`` or the ``usage.Group`` behind ``module:attribute``."""
    module, _, attribute = target.partition(":")
    __import__(module)  # importlib would have to be imported itself
    return getattr(sys.modules[module], attribute)
