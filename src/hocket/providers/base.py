"""The provider interface: a ``Provider`` turns an agent into a command line and its output into events.

A provider performs no I/O and reads no clock: its functions depend on their arguments alone. Capabilities that a CLI
lacks are None. ``hocket.providers.conformance`` checks a provider against this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from hocket.config.settings import ClaudeConfig
from hocket.model import Agent, Reason, Run, Spec, Status
from hocket.providers.definition_files import Definitions, Privileges
from hocket.redaction import Redactor

# --- Launching ----------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """The program of a CLI, which its bare name in a chain runs without a definition."""

    name: str
    label: str
    """Its name in messages."""
    variable: str
    """The environment variable that names another program to run instead."""
    install: str
    """How to install it, as a hint for users."""


class OwnServer(NamedTuple):
    """Hocket's own MCP server, as it is offered to an agent."""

    name: str
    rules: tuple[str, ...]
    """Permission rules, one for each of its tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What one start adds to its agent."""

    prompt: str | None = None
    args: tuple[str, ...] = ()
    """Arguments after those of the agent."""
    env: Mapping[str, str] = field(default_factory=dict)
    loop: bool = False
    marker: str = ""
    session: bool = False
    """Whether input stays open after a turn."""
    on_question: str = "deny"
    permission_mode: str = ClaudeConfig().permission_mode
    """The default for agents without one."""
    model: str | None = None
    """The default for agents without one."""
    contract: bool = True
    """Whether to add instructions about the marker and the worktree to the system prompt."""
    cross_session: str = ClaudeConfig().cross_session
    """What to do with messages from other sessions of the same CLI."""
    own_branch: bool = False
    """Whether it works in a worktree with a branch of its own."""
    servers: Mapping[str, Any] | None = None
    """The only MCP servers it may have, by name; None leaves the choice to its CLI."""
    own_server: OwnServer | None = None
    hook: tuple[str, ...] = ()
    """The program, with arguments, that decides about each call of a sub-agent; without one the CLI does."""
    command: tuple[str, ...] = ()
    """The program, with arguments, that runs a command of Hocket: for hooks and servers that its CLI starts."""
    team: bool = False
    """Whether it leads a team."""
    terminal: bool = False
    """Whether it needs a terminal for that."""


class Launch(NamedTuple):
    """How to start an agent: the part of a ``Spec`` that depends on its provider."""

    argv: tuple[str, ...]
    stdin: str
    prompt: str | None
    files: Mapping[str, str] = MappingProxyType({})
    env: Mapping[str, str] = MappingProxyType({})
    """Additions to the agent's environment."""
    served: bool = False
    """Whether it calls Hocket's own MCP server in its stream."""
    notices: tuple[str, ...] = ()
    """What of the agent's definition its CLI does not keep."""
    model: str | None = None
    """The model that it is to use; None if nothing names one."""


# --- Reading and judging ------------------------------------------------------------------------------------

State = dict[str, Any]
"""What a reader remembers between two lines: a small JSON value, committed together with the events."""

ReaderEvent = tuple[str, dict[str, Any]]
"""The type and the data of one event."""

Reader = Callable[[State, str, bytes, int | None], tuple[State, list[ReaderEvent]]]
"""``(state, "out" or "err", line, whole_size) -> (state, events)``. Pure: it changes no state that it is given.
``whole_size`` is None, or the size of a line that was too long and of which ``line`` is only the beginning. Never
raises; a line that is not understood becomes a ``raw`` event. Neither state nor events contain a secret."""


Verdict = tuple[Status, Reason]


class ProcessExit(Protocol):
    """How a process ended, as its keeper recorded it."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def stopped(self) -> bool: ...


def exit_verdict(exit: ProcessExit, stop_reason: Reason | None, at_zero: Verdict) -> Verdict:  # noqa: A002 - the keeper's name for it
    """The verdict by the exit alone. ``at_zero`` is the one on a process that ended by itself with exit code 0."""
    if exit.error is not None:
        return Status.FAILED, Reason.START_FAILED
    if exit.stopped:
        reason = stop_reason or Reason.STOPPED
        return (Status.STOPPED if reason is Reason.STOPPED else Status.FAILED), reason
    if exit.signal is not None:
        return Status.FAILED, Reason.SIGNAL
    return at_zero if exit.code == 0 else (Status.FAILED, Reason.EXIT)


def reported_verdict(reported: Verdict | None, exit: ProcessExit, stop_reason: Reason | None) -> Verdict:  # noqa: A002 - the keeper's name for it
    """The verdict on a CLI that reports its end: as reported, which the exit code may contradict; else by the exit."""
    if reported is not None and exit.error is None and (reported[0] is Status.DONE or not exit.stopped):
        return reported
    return exit_verdict(exit, stop_reason, (Status.FAILED, Reason.ERROR))


# --- Capabilities -------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """The answer to a question of an agent."""

    allow: bool
    text: str | None = None
    """The reason of a refusal, or the chosen answer."""
    always: bool = False
    """Whether the rule that the question suggests holds from now on, for this session."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input after the prompt, as lines. Each text is complete, with its line end."""

    message: Callable[[str], str]
    answer: Callable[[Mapping[str, Any], Answer], str]
    """The answer to a question, given the data of its event."""
    interrupt: Callable[[str], str]
    """A request, with this id, to end the current turn."""
    is_finished: Callable[[State, bool], bool]
    """``(state, settled)``: whether all work is done, so that input may end. ``settled`` means that there was no output
    for a while, so that nothing will start by itself any more."""
    is_only_background: Callable[[State], bool]
    """Whether nothing is left but background commands, which may never end."""
    background_seconds: float
    """How long such commands are waited for."""


@dataclass(frozen=True, slots=True)
class TerminalMode:
    """A CLI in a terminal: what is typed. Its events come from its transcript, never from the screen."""

    message: Callable[[str], str]
    """The keys that paste a message, without sending it. The same errors as in ``launch``."""
    enter: str
    """The key that sends what was pasted."""
    interrupt: Callable[[str], str]
    """The keys that end the current turn; the id of the request does not matter here."""
    clear: str
    """The keys that empty the input: an interrupted prompt may return to it."""
    goodbye: str
    """The keys that end the session."""
    verdict: Callable[[Run, ProcessExit, Reason | None], Verdict]
    """``(run, exit, stop_reason)``: how the run ended, by its last turn."""


class Obstacle(NamedTuple):
    """What keeps a CLI from starting in a terminal without a question of its own, and what to do about it by hand."""

    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class TeamStart:
    """What a CLI needs before its agents can lead teams."""

    needs_terminal: Callable[[tuple[int, ...]], bool]
    """By the numbers of its version; there are none if it is unknown."""
    home: Callable[[str, Mapping[str, str]], str | None]
    """``(cwd, env)``: the folder where it keeps teams, which has to be writable; None if that names no user."""
    confirmed: Callable[[str, Mapping[str, str]], str | None]
    """``(cwd, env)``: the file with what a person has confirmed in a terminal once. It is only read."""
    obstacle: Callable[[Mapping[str, str], bytes | None], Obstacle | None]
    """``(env, content)`` of that file, None if it is missing: what it would ask in a terminal before the prompt."""


TranscriptReader = Callable[[State, bytes, int | None], tuple[State, list[ReaderEvent], float | None]]
"""``(state, line, whole_size) -> (state, events, at)``: a ``Reader`` of a transcript's lines. ``at`` is when the line
was written, in wall time; None if it does not say. Types of lines that mean nothing to people have no events."""


class Helper(NamedTuple):
    """A sub-agent with a transcript of its own."""

    id: str
    tool: str | None = None
    """The tool call that started it: ``parent`` of its events."""
    agent: str | None = None
    """What it is an instance of."""
    text: str = ""
    """What it is to do, in a few words."""
    teammate: str | None = None
    """Of a teammate, which has a run of its own: its id in its team; empty as long as that is not known."""


@dataclass(frozen=True, slots=True)
class TranscriptFiles:
    """Transcripts that can be read."""

    patterns: Callable[[Mapping[str, str], str, str], Sequence[str]]
    """``(env, cwd, session)``: glob patterns of the paths where a session's transcript may be if it is at none of the
    usual ones, most likely first."""
    reader: Callable[[Helper | None, Redactor], TranscriptReader]
    """The reader of a session's transcript, or of that of one of its helpers."""
    helper_folder: Callable[[str], str]
    """The folder of the transcripts of a session's helpers, by the path of its own."""
    about: Callable[[str], str | None]
    """The file beside a helper's transcript that describes it, by the name of the transcript; None for other files."""
    helper: Callable[[str, bytes], Helper]
    """``(name, about)``: the helper by the name of its transcript and the content of that file, empty if missing."""
    continued: Callable[[State], State]
    """The state for another run, which goes on in a transcript where this one is: it counts its own usage only."""
    forked: Callable[[float, float, int], State]
    """``(since, cost, tokens)``: the state for a run whose transcript begins with a copy of an earlier one, of which
    nothing before this time is read, and whose totals include what the earlier runs have used."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions that a CLI stores and can continue in a new process."""

    resume: Callable[[Spec, str, str], Spec]
    """``(spec, session, prompt)``: the spec of a run that continues the session of another one with a new prompt."""
    transcripts: Callable[[Mapping[str, str], str, str], Sequence[str]] | None = None
    """``(env, cwd, session)``: absolute paths where the session's transcript may be, most likely first. None if they
    cannot be derived."""
    transcript_files: TranscriptFiles | None = None
    """How to read them; None if they cannot be read."""


class SessionFolders(NamedTuple):
    """Where a CLI keeps what it records of all its sessions, also those that Hocket did not start."""

    live: str
    """Has a file ``PID.json`` for each session with a process."""
    transcripts: str
    """Has a folder for each project with a file ``SESSION.jsonl`` for each session."""
    jobs: str
    """Has a folder for each background job, with a file ``state.json``."""
    roster: str
    """The file with the processes of background jobs, and the sessions that started them."""


class LiveSession(NamedTuple):
    """A session as its process describes it. No proof that the process still exists."""

    session: str
    pid: int
    started: int | None
    """When the process started, as the system counts it: without it nothing tells the process from a later one."""
    cwd: str
    is_waiting: bool
    """Whether it waits for a message or for an answer."""
    begun: float | None
    """Unix time."""
    agent: str | None
    job: str | None
    """The id of its background job, if it is one."""
    has_dialog: bool = False
    """Whether it shows a dialog that waits for an answer: what is typed then answers it."""
    changed_at: float | None = None
    """When it last began or ceased to wait; Unix time."""


class BackgroundJob(NamedTuple):
    """A session that its CLI runs in the background, apart from the process that asked for it."""

    id: str
    session: str
    cwd: str
    prompt: str | None
    begun: float | None


class JobProcess(NamedTuple):
    """The process of a running background job, as its CLI records it. No proof that it still exists."""

    job: str
    session: str
    pid: int
    started: int | None
    """As in ``LiveSession``."""
    cwd: str
    begun: float | None
    launchers: tuple[str, ...]
    """The sessions that started it; empty if a person did, or if that is not known."""


class SessionSummary(NamedTuple):
    """What the beginning and the end of a transcript tell about its session; None where they do not."""

    cwd: str | None = None
    agent: str | None = None
    """The definition that it was started with."""
    prompt: str | None = None
    last: str | None = None
    """The last words of the agent."""
    begun: float | None = None
    """Unix time of its first record."""


@dataclass(frozen=True, slots=True)
class ObservedSessions:
    """Sessions that Hocket did not start, as their CLI records them. All of these contents are untrusted."""

    folders: Callable[[Mapping[str, str]], SessionFolders | None]
    """Where they are, by an environment; None if that names no user."""
    session_of: Callable[[str], str | None]
    """The session of a transcript, by the name of the file; None for other files."""
    live: Callable[[bytes], LiveSession | None]
    """By the content of a file of a live session; None if it is no such file, or half of one."""
    job: Callable[[str, bytes], BackgroundJob | None]
    """``(id, content)``: by the file of a job; None if it is no such file."""
    job_processes: Callable[[bytes], Sequence[JobProcess]]
    """By the content of the roster."""
    stop_job: Callable[[str, str], tuple[str, ...]]
    """``(program, id)``: the command line that ends a job."""
    summary: Callable[[bytes, bytes], SessionSummary]
    """``(beginning, end)``: two parts of a transcript, which begin and end anywhere."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """For CLIs that report what they cost."""

    bound: Callable[[Sequence[str], float], tuple[str, ...]]
    """The command line with a limit in US dollars."""
    unpriced_tokens: Callable[[State], int]
    """How many tokens were used since a cost was last reported; 0 before the first report."""


class McpRequest(NamedTuple):
    """A message to an MCP server of ours, found in the output and answered in the input."""

    id: str
    server: str
    message: Any
    """The JSON-RPC message; None if its line was too long to be read."""
    withdrawn: bool = False
    """The request with this id is no longer waited for; nothing else is set then."""


@dataclass(frozen=True, slots=True)
class OwnTools:
    """Calls of Hocket's own MCP server inside the stream."""

    request: Callable[[bytes], McpRequest | None]
    """The request in a line of output, if it is one."""
    reply: Callable[[str, Mapping[str, Any]], str]
    """The input line that answers the request with this id."""
    refusal: Callable[[str, str], str]
    """The input line that refuses the request with this id, with a reason."""
    pending: Callable[[State], Collection[str]]
    """The ids of tool calls without a result."""


@dataclass(frozen=True, slots=True)
class TextOutput:
    """For programs whose output is plain text and no protocol: its end is the result, and nothing reports usage."""

    result: Callable[[bytes], str]
    """The result by the end of the output: at least ``RESULT_LIMIT`` bytes of it if there are so many."""
    last_events: Callable[[State], list[ReaderEvent]]
    """What follows from the end of the output."""


class TeamFolders(NamedTuple):
    """Where a CLI keeps the files of all its teams."""

    teams: str
    """Has a folder for each team, with its configuration and a folder of inboxes."""
    tasks: str
    """Has a folder for each team, with a file for each shared task."""


class TeamMember(NamedTuple):
    """A member of a team that is not its lead."""

    id: str
    name: str
    agent: str | None = None
    """What it is an instance of."""
    model: str | None = None
    is_active: bool | None = None
    """Whether it is at work; None if the configuration does not say."""


class TeamConfig(NamedTuple):
    """A team as its CLI records it."""

    session: str | None
    """The session of its lead; None for a team that belongs to no lead."""
    members: tuple[TeamMember, ...]
    """Without the lead."""
    pid: int | None = None
    started: int | None = None
    """The lead's process, as in ``LiveSession``."""


class TeamTask(NamedTuple):
    """A task that the members of a team share."""

    id: str
    subject: str
    description: str
    status: str
    """``pending``, ``in_progress`` or ``completed``; ``deleted`` also for a task of the CLI itself, which is hidden."""
    owner: str | None
    blocks: tuple[str, ...]
    blocked_by: tuple[str, ...]


class TeamMessage(NamedTuple):
    """A message between two members of a team."""

    id: str
    sender: str
    recipient: str
    text: str
    summary: str | None
    kind: str
    """``message``, or what the CLI calls its own messages (``shutdown_request`` …)."""


@dataclass(frozen=True, slots=True)
class Teams:
    """Teams of agents in one session, as a CLI records them. All of these contents are untrusted, and may be halves."""

    folders: Callable[[Mapping[str, str]], TeamFolders | None]
    """Where they are, by an environment; None if that names no user."""
    config_file: str
    inboxes: str
    """The names of a team's configuration and of its folder of inboxes."""
    is_name: Callable[[str], bool]
    """Whether a name can be that of a team's folder."""
    first_name: Callable[[str], str]
    """The name that the team of a session most likely has."""
    record_of: Callable[[str], str | None]
    """What the name of a file says that the file is: a task or an inbox; None for other files."""
    config: Callable[[str, bytes], TeamConfig | None]
    """``(team, content)``; None, here and below, if it is not readable now."""
    task: Callable[[str, bytes], TeamTask | None]
    """``(id, content)``"""
    inbox: Callable[[str, bytes], Sequence[TeamMessage] | None]
    """``(recipient, content)``: the messages of an inbox; not what the CLI itself reports there."""
    sent: Callable[[Mapping[str, Any]], TeamMessage | None]
    """By the data of a ``tool.finished`` event, the message that the call has sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to run agents."""

    name: str
    longest_line: int
    """Bytes up to which a line is read whole."""
    launch: Callable[[Agent, LaunchRequest], Launch]
    """The command line of a start. ``UsageError`` or ``PromptError`` if it cannot be delivered."""
    with_prompt: Callable[[Spec, str], Spec]
    """The same start with another prompt; the same errors."""
    reader: Callable[[Spec, Redactor], Reader]
    verdict: Callable[[State, ProcessExit, Reason | None], Verdict]
    """``(state, exit, stop_reason)``: how the run ended."""
    reports_tokens: bool = True
    """Whether its runs report what they use."""
    is_transient: Callable[[State], bool] | None = None
    """Whether a failure has a cause that passes by itself, such as an overload or a broken connection."""
    program: Program | None = None
    conversation: Conversation | None = None
    terminal: TerminalMode | None = None
    team_start: TeamStart | None = None
    hook_question: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """The data of a ``question``, without its id, for a call that a hook of the CLI asks about: its ``tool``, ``input``
    and ``suggestions``, and the ``agent`` if it is not the run's own. None if no hook asks."""
    sessions: Sessions | None = None
    observed: ObservedSessions | None = None
    teams: Teams | None = None
    pricing: Pricing | None = None
    own_tools: OwnTools | None = None
    text_output: TextOutput | None = None
    definitions: Definitions | None = None
    privileges: Privileges | None = None
