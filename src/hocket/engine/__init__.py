"""Making it happen: starting, watching, following and stopping runs, and driving chains from step to step.

The one room that puts the others together. It speaks no SQL, forks nothing itself and knows no HTTP.
"""
