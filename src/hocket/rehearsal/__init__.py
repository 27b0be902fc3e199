"""Rehearsal: run a chain by a script, without tokens.

``installer.install`` writes the *scripted agent*, a program that replaces the Claude CLI, speaks its stream format and
runs no tools. ``script.py`` describes scripts. This file imports nothing, because the scripted agent starts for every
run.
"""
