"""Runs whose CLI has a terminal: following them, typing at them, and showing the terminal to people."""
