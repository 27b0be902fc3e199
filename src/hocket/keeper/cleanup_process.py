"""A process that outlives another one, however that one ends, and does then what is left to be done.

The other one holds the writing end of a pipe that is the heir's standard input: the kernel closes it with the process,
also after a SIGKILL. What is to be done is not known here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hocket.keeper.process_tree import HOME
from hocket.keeper.server_start import server_environment


@contextmanager
def heir(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Iterator[None]:
    """Runs a program beside this block, to read its input to the end. Where the block ends, it ends without having to.

    Its session is its own, so that a signal to a whole group misses it, and so does the sweep of the home that it is
    there for. The end of a run that it was started in ends it too, together with everything else.
    """
    environment = {name: value for name, value in server_environment(env).items() if name != HOME}
    null = subprocess.DEVNULL
    with subprocess.Popen(
        argv, cwd=cwd, env=environment, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            process.kill()
