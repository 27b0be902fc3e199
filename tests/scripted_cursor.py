"""A scripted ``cursor-agent``: it takes the documented options, speaks the documented stream and keeps its sessions.

The real program cannot be had for tests, so what is known of it is its documentation alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from world import Bin

Step = Mapping[str, Any]
HELLO = {"say": "hello there"}

_PROGRAM = '''
import json, os, signal, subprocess, sys, uuid

SWITCHES = {"-p", "--print", "--stream-partial-output", "-f", "--force", "--yolo", "--trust", "--approve-mcps"}
VALUES = {"--output-format", "--model", "--mode", "--resume", "--sandbox", "--api-key", "--workspace"}
SUBCOMMANDS = {"login", "logout", "status", "models", "mcp", "update", "ls", "resume", "create-chat"}
HERE = os.path.dirname(os.path.abspath(__file__))


def refuse(text):
    print(text, file=sys.stderr)
    sys.exit(1)


words, switches, values, prompts = sys.argv[1:], set(), {}, []
if words == ["--version"]:
    print("2026.08.25-scripted")
    sys.exit(0)
while words:
    word = words.pop(0)
    if word in SWITCHES:
        switches.add(word)
    elif word in VALUES:
        values[word] = words.pop(0)
    elif word.startswith("-"):
        refuse(f"error: unknown option '{word}'")
    elif word in SUBCOMMANDS:
        refuse(f"the subcommand {word} was run")
    else:
        prompts.append(word)
if "-p" not in switches or values.get("--output-format") != "stream-json" or len(prompts) != 1:
    refuse("a script needs -p, stream-json and one prompt")
script = json.load(open(os.path.join(HERE, "cursor-script.json")))
sessions = os.path.join(HERE, "cursor-sessions")
os.makedirs(sessions, exist_ok=True)
session = values.get("--resume") or str(uuid.uuid4())
path = os.path.join(sessions, os.path.basename(session))
if "--resume" in values and not os.path.exists(path):
    refuse(f"Chat {session} not found")
history = json.load(open(path)) if os.path.exists(path) else []
history.append(prompts[0])
json.dump(history, open(path, "w"))
streams, is_forced = "--stream-partial-output" in switches, bool({"-f", "--force", "--yolo"} & switches)
is_read_only, clock, said, waiting, calls = values.get("--mode") in ("ask", "plan"), 1756000000000, [], "", 0


def emit(**event):
    print(json.dumps({**event, "session_id": session}), flush=True)


def message(text):
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def end_of_message(**more):
    """A message is whole before a tool call, and at the end."""
    global waiting
    if waiting:
        emit(type="assistant", message=message(waiting), **more)
        said.append(waiting)
        waiting = ""


def say(text):
    global waiting, clock
    waiting += text
    middle = len(text) // 2
    for part in (text[:middle], text[middle:]) if streams else ():
        clock += 7
        emit(type="assistant", message=message(part), timestamp_ms=clock)


def call(name, args, result):
    global calls
    calls += 1
    end_of_message(**({"model_call_id": f"model-{calls}", "timestamp_ms": clock} if streams else {}))
    emit(type="tool_call", subtype="started", call_id=f"call-{calls}", tool_call={name: {"args": args}})
    result = result()
    emit(type="tool_call", subtype="completed", call_id=f"call-{calls}", tool_call={name: {"args": args, **result}})


def shell(command):
    if is_read_only or not (is_forced or command.split()[0] in script.get("allowed", [])):
        return {"result": {"rejected": {"command": command, "reason": "not allowed"}}}
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    kind = "failure" if done.returncode else "success"
    return {"result": {kind: {"command": command, "exitCode": done.returncode, "stdout": done.stdout}}}


def write(file):
    if is_read_only:
        return {"result": {"rejected": {"path": file, "reason": "read-only"}}}
    open(file, "w").close()
    return {"result": {"success": {"path": os.path.abspath(file), "linesCreated": 0}}}


emit(type="system", subtype="init", apiKeySource="env", cwd=os.getcwd(), permissionMode="default",
     model=values.get("--model", "Auto"))
emit(type="user", message={"role": "user", "content": [{"type": "text", "text": prompts[0]}]})
number = len(os.listdir(sessions))
fits = (one for one in script["rules"] if one.get("prompt", "") in prompts[0] and one.get("session", number) == number)
steps = next(fits, {"do": []})["do"]
for step in steps:
    if "say" in step:
        say(step["say"].format(prompt=prompts[0].strip(), model=values.get("--model"), turn=len(history)))
    elif "shell" in step:
        call("shellToolCall", {"command": step["shell"]}, lambda: shell(step["shell"]))
    elif "write" in step:
        call("writeToolCall", {"path": step["write"]}, lambda: write(step["write"]))
    elif "fail" in step:
        refuse(step["fail"])
    elif "env" in step:
        say(" ".join(f"{name}={os.environ.get(name)}" for name in step["env"]))
    elif "wait" in step:
        signal.pause()
end_of_message()
emit(type="result", subtype="success", is_error=False, duration_ms=12, duration_api_ms=12, result="".join(said),
     request_id="request-1")
'''


def install_cursor(agent: Bin, *steps: Step, rules: list[dict[str, Any]] | None = None, **script: Any) -> Path:
    """Put the program on PATH. It follows the steps, or the first rule whose ``prompt`` is in its own and whose
    ``session`` is the number of its sessions."""
    content = {"rules": [*(rules or []), {"do": list(steps)}], **script}
    (agent.folder / "cursor-script.json").write_text(json.dumps(content), encoding="utf-8")
    return agent("cursor-agent", _PROGRAM)
