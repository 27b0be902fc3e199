"""A small program in the place of the Claude CLI in a terminal: it reads keys, and writes the files of a session.

What a turn does follows from words in its prompt:

    wait     it is at work until the file ``go`` appears or Escape is pressed
    restored an interrupt puts the prompt back into the input
    ask      a dialog is open until the file ``decided`` appears or Enter is pressed, which writes ``accepted``
    helper   a sub-agent begins, and ends when the file ``go`` appears
    clear    it goes on in another session
    die      it prints why and exits with 3
"""

from __future__ import annotations

from world import Bin

VERSION = "2.1.326 (Claude Code)"
PROGRAM = r"""
import json, os, re, select, sys, termios, time, tty, uuid
from datetime import datetime, timezone
if "--version" in sys.argv:
    print("2.1.326 (Claude Code)")
    sys.exit(0)
HOME = os.path.join(os.environ["HOME"], ".claude")
FOLDER = os.path.join(HOME, "projects", re.sub("[^A-Za-z0-9]", "-", os.path.realpath(os.getcwd())))
os.makedirs(FOLDER, exist_ok=True)
os.makedirs(os.path.join(HOME, "sessions"), exist_ok=True)
session = sys.argv[sys.argv.index("--session-id") + 1]
started = open("/proc/self/stat").read().rpartition(") ")[2].split()[19]

def record(status):
    content = {"pid": os.getpid(), "sessionId": session, "cwd": os.getcwd(), "procStart": started, "status": status}
    with open(os.path.join(HOME, "sessions", f"{os.getpid()}.json"), "w") as file:
        json.dump(content, file)

def write(kind, content, name=None, **more):
    line = {"type": kind, "uuid": str(uuid.uuid4()), "sessionId": session, "isSidechain": False, **more}
    line["message"] = {"role": kind, "id": "msg_" + uuid.uuid4().hex, "content": content, **more.pop("message", {})}
    line["timestamp"] = datetime.now(timezone.utc).isoformat()
    with open(name or os.path.join(FOLDER, session + ".jsonl"), "a") as file:
        file.write(json.dumps(line) + "\n")

if "--resume" in sys.argv:
    with open(os.path.join(FOLDER, sys.argv[sys.argv.index("--resume") + 1] + ".jsonl")) as earlier:
        lines = earlier.read()
    with open(os.path.join(FOLDER, session + ".jsonl"), "a") as file:
        file.write(lines)

def say(text):
    write("assistant", [{"type": "text", "text": text}],
          message={"model": "m", "stop_reason": "end_turn", "usage": {"input_tokens": 10, "output_tokens": 5}})

def keys(seconds=0.02):
    return os.read(0, 65536).decode() if select.select([0], [], [], seconds)[0] else ""

def turn(text):
    global session, typed
    human = {"kind": "human"}
    write("user", text, origin=human)
    record("busy")
    if "clear" in text:
        session = str(uuid.uuid4())
        write("user", text, origin=human)
    if "die" in text:
        print("\x1b[31mthe machine is on fire\x1b[0m\r")
        sys.exit(3)
    if "helper" in text:
        folder = os.path.join(FOLDER, session, "subagents")
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "agent-h1.meta.json"), "w").write(json.dumps({"agentType": "Explore"}))
        helper = os.path.join(folder, "agent-h1.jsonl")
        write("user", "look", helper)
        if os.fork() == 0:
            while not os.path.exists("go"):
                time.sleep(0.02)
            write("assistant", [{"type": "text", "text": "found"}], helper, message={"stop_reason": "end_turn"})
            os._exit(0)
    if "wait" in text:
        while not os.path.exists("go"):
            if "\x1b" in keys():
                write("user", [{"type": "text", "text": "[Request interrupted by user]"}])
                typed = text if "restored" in text else ""
                record("idle")
                return
    if "ask" in text:
        record("waiting")
        while not os.path.exists("decided"):
            if "\r" in keys():
                open("accepted", "w").close()
                break
        record("busy")
    say("you said: " + text)
    record("idle")

tty.setraw(0)
sys.stdout.write("\x1b[?2004h\x1b[2J> ")
sys.stdout.flush()
record("idle")
typed, pasting = "", False
turn(sys.argv[-1])
while True:
    for part in re.findall(r"\x1b\[200~|\x1b\[201~|[\s\S]", keys(1)):
        if part in ("\x1b[200~", "\x1b[201~"):
            pasting = part == "\x1b[200~"
        elif pasting or part not in "\r\x15\x1b":
            typed += part
        elif part == "\x15":
            typed = ""
        elif part == "\r":
            text, typed = typed, ""
            if text == "/exit":
                sys.exit(0)
            turn(text)
"""


def install_lead(agent: Bin) -> None:
    """Write ``claude`` into a directory that is on PATH."""
    agent("claude", PROGRAM)
