"""WHAT OTHERS' AGENTS MAY CALL: the MCP server, without a transport of its own choice.

``protocol`` turns a message into its answer, ``tools`` says what can be called, ``calls`` what a call does, as steps
that somebody else carries out. ``stdio`` does so over the thin client; over HTTP and in the stream of a Claude run the
server does it itself. Clients start ``stdio`` for each session of theirs, so all of it is made of the standard
library, and of little of that.

Here do not belong: rules about runs and tasks, which stand behind the routes that the steps ask, and how a Claude run
is told of this server, which is its provider's business.
"""
