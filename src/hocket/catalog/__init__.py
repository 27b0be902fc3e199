"""What can run: which agent a name means, and where its definition came from.

How an agent is started is its provider's business, and whether it may be started is the engine's.
"""
