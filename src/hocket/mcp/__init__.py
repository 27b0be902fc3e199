"""The Model Context Protocol and the tools that agents call to run other agents, without a transport.

``protocol`` turns a message into its response, ``tools`` declares the tools, and ``calls`` has the actions of a call.
The transports perform the actions: ``cli/mcp.py`` over pipes, ``api/mcp.py`` over HTTP and in the stream of a run.
"""
