"""The scripted model: the Messages API and the Responses API on loopback, so that *real* CLIs run without a token.

    with ScriptedModel(load("script.yaml")) as model:
        ...run claude with ANTHROPIC_BASE_URL=model.url...
        assert not model.uncovered

Only the standard library, only 127.0.0.1. ``matching.py`` chooses messages; here requests become conversations
and messages become HTTP. Whose conversation it is: the name of a teammate, the text of its definition in the system
prompt (``agents`` maps names to such texts), ``agent: NAME`` there, or for a sub-agent the prompt in the script.
What the CLI asks for itself (titles, quota, what a page says) gets a harmless answer. Codex, which speaks the Responses
API at ``model.url + "/v1"``, is the agent ``codex``.
"""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hocket.errors import UsageError
from hocket.rehearsal import messages_api, responses_api
from hocket.rehearsal.conversation_counts import ConversationCounts, note_uncovered
from hocket.rehearsal.matching import (
    AgentConversation,
    Message,
    Messages,
    Uncovered,
    dicts,
    flat_text,
    is_reminded,
    next_message,
    sub_agent_type,
    turn_of,
)
from hocket.rehearsal.steps import NO_DEFINITION, Fail, Say, Script

SUB_AGENT = "cc_is_subagent=true"
HARMLESS = Message((Say("ok"),))
LARGEST_BODY = 64 * 1024 * 1024
MAX_THREADS = 64
IDLE_SECONDS = 60
LOOK_SECONDS = 0.2
ERRORS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""The API's names for its errors; every other status is an ``api_error``."""


class ScriptedModel:
    """A server for one script. Use ``start()`` and ``stop()``, or ``with``; ``url`` is for ANTHROPIC_BASE_URL."""

    def __init__(
        self,
        script: Script,
        port: int = 0,
        state: Path | None = None,
        agents: Mapping[str, str] | None = None,
    ) -> None:
        self.script = script
        self.uncovered: list[Uncovered] = []
        self.requests = 0
        """The number of requests that the script answered."""
        self._state = state
        self._passes = ConversationCounts(state)
        self._agents = dict(agents or {})
        _check_distinct(self._agents)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop at once, also while responses are pending."""
        self._stopping.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, seconds: float) -> bool:
        """Wait; False if the server stops first."""
        return not self._stopping.wait(seconds)

    def answer(self, body: Mapping[str, Any], session: str, sub_agent: str) -> Message:
        """The message that the script has for a request."""
        conversation = self._conversation(body, session, sub_agent)
        return HARMLESS if conversation is None else self._next(conversation)

    def answer_responses(self, body: Mapping[str, Any], session: str) -> Message:
        """The message that the script has for a request of the Responses API."""
        passage = self._passes.number(responses_api.AGENT, session)
        return self._next(responses_api.conversation(body, passage))

    def _next(self, conversation: AgentConversation) -> Message:
        with self._lock:
            self.requests += 1
        found = next_message(self.script, conversation)
        if isinstance(found, Uncovered):
            self._note(found)
            return Message(fail=Fail(400, str(found)))
        return found

    def _conversation(self, body: Mapping[str, Any], session: str, sub_agent: str) -> AgentConversation | None:
        system, messages = flat_text(body.get("system")), dicts(body.get("messages"))
        tools = tuple(str(tool.get("name")) for tool in dicts(body.get("tools")))
        teammate, is_teammate, _ = sub_agent.rpartition("@")
        name = teammate if is_teammate else self._name(system, messages)
        rules_want_no_tools = any(rule.when.tools == () for rule in self.script.rules)
        if name is None and not tools and session and not _is_agents(body) and not rules_want_no_tools:
            return None
        agent = name or NO_DEFINITION
        passage = self._passes.number(agent, f"{session}/{sub_agent}")
        return AgentConversation(agent, messages, system, tools, passage)

    def _name(self, system: str, messages: Messages) -> str | None:
        """The agent of a request. The longest definition wins, because one text may be a prefix of another."""
        known = [name for name, text in self._agents.items() if text.strip() and text.strip() in system]
        if known:
            return max(known, key=lambda name: len(self._agents[name]))
        named = [rule.when.agent for rule in self.script.rules if rule.when.agent]
        if called := [name for name in named if f"agent: {name}" in system]:
            return max(called, key=len)
        return sub_agent_type(self.script, turn_of(messages[:1]).prompt) if SUB_AGENT in system else None

    def _note(self, uncovered: Uncovered) -> None:
        """Note each request once, although the CLI retries it."""
        with self._lock:
            if uncovered in self.uncovered:
                return
            self.uncovered.append(uncovered)
        if self._state is not None:
            note_uncovered(self._state, uncovered)


def _check_distinct(agents: Mapping[str, str]) -> None:
    """Refuse equal definitions: nothing else in a request identifies the agent."""
    names: dict[str, list[str]] = {}
    for name, text in agents.items():
        names.setdefault(text.strip(), []).append(name)
    for alike in names.values():
        if len(alike) > 1:
            raise UsageError(
                f"{' and '.join(alike)} have the same instructions, by which the scripted model identifies agents",
                "give one of them a sentence of its own, or rehearse with scripted agents, which know their names",
            )


def _is_agents(body: Mapping[str, Any]) -> bool:
    """True if a request is for an agent: then the CLI adds its environment and limits its context.

    It is a reminder before the user's text for older models, and a system message for newer ones.
    """
    if "context_management" in body:
        return True
    added = (message for message in dicts(body.get("messages")) if message.get("role") in ("user", "system"))
    return any(message["role"] == "system" or is_reminded(message) for message in added)


# --- HTTP ---------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    """One thread per connection, up to a limit; later connections wait."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], model: ScriptedModel) -> None:
        self.model = model
        self._free = threading.BoundedSemaphore(MAX_THREADS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._free.acquire(timeout=LOOK_SECONDS):
            if not self.model.wait(0):
                self.shutdown_request(request)
                return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""


class _Handler(BaseHTTPRequestHandler):
    """Each response ends its connection, so that a stream can also break off and a stop leaves no thread behind."""

    protocol_version = "HTTP/1.1"
    server_version = "rehearsal"
    sys_version = ""
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._send(200, b"")

    def do_GET(self) -> None:
        self._send_json(200, {"status": "ok"})

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        body = self._body()
        if body is None:
            return
        if path == "/v1/messages/count_tokens":
            self._send_json(200, {"input_tokens": messages_api.INPUT_TOKENS})
        elif path == "/v1/messages":
            self._answer(body)
        elif path == "/v1/responses":
            self._answer_responses(body)
        else:
            self._send_failure(404, f"rehearsal: nothing is at {path}")

    def _body(self) -> dict[str, Any] | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            self._send_failure(413, "rehearsal: a body needs a length, and not one as large as this")
            return None
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._send_failure(400, "rehearsal: the body is no JSON object")
            return None
        return body

    def _answer(self, body: dict[str, Any]) -> None:
        session = self.headers.get("X-Claude-Code-Session-Id") or _session_of(body)
        message = self.server.model.answer(body, session, self.headers.get("X-Claude-Code-Agent-Id", ""))
        is_stream = body.get("stream") is True
        if message.fail is not None and message.fail.status is not None and not (is_stream and message.breaks):
            if self._pause_all(message):
                self._send_failure(message.fail.status, message.fail.message)
            return
        items, id, name = (
            messages_api.contents(message),
            messages_api.new_id("msg"),
            str(body.get("model", "rehearsal")),
        )
        if is_stream:
            self._stream(message, messages_api.frames(message, items, id, name))
        elif self._pause_all(message) and self._is_complete(message):
            self._send_json(200, messages_api.whole(message, items, id, name))

    def _answer_responses(self, body: dict[str, Any]) -> None:
        message = self.server.model.answer_responses(body, self.headers.get("thread-id", ""))
        if message.fail is not None and message.fail.status is not None and not message.breaks:
            if self._pause_all(message):
                self._send_json(message.fail.status, {"error": {"message": message.fail.message}})
        else:
            self._stream(message, responses_api.events(message))

    def _stream(self, message: Message, stream: Iterator[messages_api.Frame | float]) -> None:
        self._send_head(200, "text/event-stream")
        for frame in stream:
            if isinstance(frame, float):
                self.wfile.flush()
                if not self.server.model.wait(frame):
                    return
            else:
                self.wfile.write(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n".encode())
        self.wfile.flush()
        self._is_complete(message)

    def _pause_all(self, message: Message) -> bool:
        return all(self.server.model.wait(pause) for pause in messages_api.pauses(message.parts))

    def _is_complete(self, message: Message) -> bool:
        """False if the script gives no complete response. A hang lasts until the client disconnects."""
        self.close_connection = True
        # A client sends nothing while it waits, so a readable socket means that it disconnected.
        while message.end == "hang" and self.server.model.wait(LOOK_SECONDS):
            if select.select([self.connection], [], [], 0)[0]:
                break
        return not message.has_no_end

    def _send_failure(self, status: int, text: str) -> None:
        error = {"type": ERRORS.get(status, "api_error"), "message": text}
        self._send_json(status, {"type": "error", "error": error})

    def _send_json(self, status: int, value: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self._send_head(status, kind)
        self.wfile.write(body)
        self.wfile.flush()

    def _send_head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()


def _session_of(body: Mapping[str, Any]) -> str:
    """The session in the metadata, which is JSON in a string, for requests without the header."""
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    try:
        inside = json.loads(user) if isinstance(user, str) else None
    except ValueError:
        inside = None
    return str(inside.get("session_id", user)) if isinstance(inside, dict) else str(user or "")
