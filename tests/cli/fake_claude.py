"""A program that speaks as the Claude CLI does, one turn per message, for tests of what is said to it and shown of it.

What a turn does is in the message: each of these words in it counts, in this order.

- ``helper``: a helper says something
- ``tool``: a tool is used, and fails
- ``wait``: nothing happens until the turn is interrupted
- ``ask``: leave is asked to run a command; ``twice``: two leaves at once; ``rule``: with a rule to allow it always
- ``choose``: a choice is asked for
- ``hold``: the turn ends when a file ``go`` is there
- ``fail``: the turn fails

Otherwise it says ``you said: MESSAGE``. Its input's end is its own.
"""

from __future__ import annotations

PROGRAM = r"""
import json, os, sys, time

if sys.argv[1:] == ["--version"]:
    print("2.1.325 (Claude Code)")
    sys.exit(0)

session = sys.argv[sys.argv.index("--session-id") + 1]
turns = 0
last = ""


def say(kind, **more):
    print(json.dumps({"type": kind, "session_id": session, **more}), flush=True)


def heard():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def content(*blocks, parent=None, **more):
    message = {"id": f"m{turns}", "role": "assistant", "model": "fake", "content": list(blocks)}
    say("assistant", message=message, parent_tool_use_id=parent, **more)


def text(words, **more):
    content({"type": "text", "text": words}, **more)


def result(words, **more):
    usage = {"input_tokens": 10, "output_tokens": 5}
    models = {"fake": {"inputTokens": 10, "outputTokens": 5, "costUSD": 0.01 * turns}}
    more = {"subtype": "success", "is_error": False, **more}
    say("result", result=words, num_turns=1, duration_ms=1, total_cost_usd=0.01 * turns, usage=usage,
        modelUsage=models, permission_denials=[], **more)


def rules(tool):
    if "rule" not in last:
        return []
    rule = {"toolName": tool, "ruleContent": "touch *"}
    return [{"type": "addRules", "rules": [rule], "behavior": "allow", "destination": "localSettings"}]


def leave(number, tool, given):
    request = {"subtype": "can_use_tool", "tool_name": tool, "display_name": tool, "input": given,
               "description": "", "permission_suggestions": rules(tool), "tool_use_id": f"t{number}"}
    print(json.dumps({"type": "control_request", "request_id": f"q{turns}-{number}", "request": request}), flush=True)


def answers(count):
    found = []
    while len(found) < count:
        line = heard()
        if line["type"] == "control_response":
            found.append(line["response"]["response"])
    return found


def interrupted(line):
    request = line["request_id"]
    print(json.dumps({"type": "control_response", "response": {"subtype": "success", "request_id": request}}))
    result("", subtype="error_during_execution", is_error=True, errors=["interrupted"])


def turn(words):
    global last
    last = words
    if "helper" in words:
        text("found it", parent="use0", agent_id="a1", subagent_type="Explore")
    if "tool" in words:
        given = {"command": "make test"}
        content({"type": "tool_use", "id": f"use{turns}", "name": "Bash", "input": given})
        answer = {"type": "tool_result", "tool_use_id": f"use{turns}", "is_error": True, "content": "no rule"}
        say("user", message={"role": "user", "content": [answer]}, parent_tool_use_id=None)
    if "wait" in words:
        text("working")
        line = heard()
        while line.get("request", {}).get("subtype") != "interrupt":
            line = heard()
        return interrupted(line)
    told = []
    if "ask" in words:
        count = 2 if "twice" in words else 1
        for number in range(count):
            leave(number, "Bash", {"command": f"touch x{number}", "description": "Make a file"})
        told += answers(count)
    if "choose" in words:
        options = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]
        leave(9, "AskUserQuestion", {"questions": [{"question": "Which colour?", "options": options}]})
        told += answers(1)
    while "hold" in words and not os.path.exists("go"):
        time.sleep(0.01)
    if "fail" in words:
        return result("API Error: 500", is_error=True, api_error_status=500)
    reply = f"you said: {words}" + "".join(f" [{one['behavior']} {one.get('message') or _chosen(one)}]" for one in told)
    text(reply)
    result(reply)


def _chosen(answer):
    given = answer.get("updatedInput", {})
    for rule in answer.get("updatedPermissions", []):
        return f"{rule['rules'][0]['ruleContent']} for the {rule['destination']}"
    return given.get("answers") or given.get("command")


while True:
    line = heard()
    if line["type"] == "control_request":
        interrupted(line)
    if line["type"] != "user":
        continue
    turns += 1
    said = line["message"]["content"]
    say("system", subtype="init", cwd=os.getcwd(), tools=["Bash"], model="fake", permissionMode="default",
        claude_code_version="2.1.325")
    turn(said if isinstance(said, str) else "".join(block.get("text", "") for block in said))
"""
