"""The programs that the recorded runs are of. Each notes its starts, so that a test can count them."""

from __future__ import annotations

from pathlib import Path

from world import Bin

NOTE = '#!/bin/sh\nprintf "%s\\n" "$(echo "${0##*/}" $*)" >> "${0%/*}/../ledger"\n'
SHELL = {
    "greet": 'for word; do :; done; echo "hello $word"\n',
    "fails": 'echo "trouble" >&2; exit 3\n',
    # Waits for a FIFO, and ends with a code.
    "held": 'echo "ready"; cat "$1" > /dev/null; echo "done"; exit "${2:-0}"\n',
    # Says the marker in its second pass.
    "counter": 'passes=$(grep -c "^counter" "${0%/*}/../ledger"); echo "pass $passes"\n'
    '[ "$passes" -lt 2 ] || echo "FORKHESTRA_COMPLETE"\n',
    # Says what it was asked, and writes down the secret that it was started with.
    "second": 'for word; do :; done; printf %s "$API_TOKEN" > "${0%/*}/../token-seen"; echo "second: $word"\n',
    "asker": 'hocket ask "Which environment?" --option staging --option production\n',
}

CLAUDE = r"""
import json, sys

if sys.argv[1:] == ["--version"]:
    print("2.1.325 (Claude Code)")
    sys.exit(0)
session = sys.argv[sys.argv.index("--session-id") + 1]


def say(kind, **more):
    print(json.dumps({"type": kind, "session_id": session, **more}), flush=True)


for line in sys.stdin:
    heard = json.loads(line)
    if heard["type"] == "control_request":
        answer = {"subtype": "success", "request_id": heard["request_id"]}
        print(json.dumps({"type": "control_response", "response": answer}), flush=True)
    if heard["type"] != "user":
        continue
    words = heard["message"]["content"]
    words = words if isinstance(words, str) else "".join(block.get("text", "") for block in words)
    with open(__file__.rsplit("/", 2)[0] + "/ledger", "a") as ledger:
        ledger.write(f"claude {words}\n")
    say("system", subtype="init", cwd="/", tools=["Bash"], model="fake", permissionMode="default",
        claude_code_version="2.1.325")
    reply = f"you said: {words}"
    if "ask" in words.split():
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "display_name": "Bash",
                   "input": {"command": "touch x"}, "description": "", "permission_suggestions": [],
                   "tool_use_id": "t1"}
        print(json.dumps({"type": "control_request", "request_id": "q1", "request": request}), flush=True)
        while (answer := json.loads(sys.stdin.readline()))["type"] != "control_response":
            pass
        reply += f" [{answer['response']['response']['behavior']}]"
    message = {"id": "m1", "role": "assistant", "model": "fake", "content": [{"type": "text", "text": reply}]}
    say("assistant", message=message, parent_tool_use_id=None)
    models = {"fake": {"inputTokens": 10, "outputTokens": 5, "costUSD": 0.01}}
    say("result", result=reply, subtype="success", is_error=False, num_turns=1, duration_ms=1, total_cost_usd=0.01,
        usage={"input_tokens": 10, "output_tokens": 5}, modelUsage=models, permission_denials=[])
"""


def install(folder: Path) -> None:
    """Put all of them into a folder that is on PATH."""
    put = Bin(folder)
    for name, body in SHELL.items():
        put(name, NOTE + body)
    put("claude", CLAUDE)
