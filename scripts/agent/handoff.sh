#!/bin/sh
# Hand a task to another agent, wait for it, and print only its final message.
#
#   scripts/agent/handoff.sh TASK AGENT PROMPT
#
# Inside an agent TASK is $HOCKET_TASK; a PROMPT of "-" is read from standard input. If `hocket` is on PATH, this script
# calls it. Otherwise it uses curl over the socket in HOCKET_URL and polls the record of the hand-off every two seconds.
# Messages go to standard error. Exit codes:
#
#   0 done   1 failed, stopped or lost   2 refused, nothing was started   3 still running after
#   HOCKET_HANDOFF_TIMEOUT seconds (600; 0 for no limit)   4 needs an answer or trust   5 budget used up
#
# shellcheck disable=SC2016 # a dollar sign in single quotes is part of a message
set -u

PAUSE=2          # seconds between two requests
ATTEMPTS=5       # to start the hand-off, one second apart
timeout=${HOCKET_HANDOFF_TIMEOUT:-600}

complain() {
    printf 'handoff.sh: %s\n' "$1" >&2
}

refuse() {
    complain "$1"
    exit 2
}

if [ "$#" -ne 3 ]; then
    echo 'usage: scripts/agent/handoff.sh TASK AGENT PROMPT' >&2
    echo '  TASK    the id of the task; inside an agent: "$HOCKET_TASK"' >&2
    echo '  AGENT   the agent: developer, developer-review, qa, planner, …' >&2
    echo '  PROMPT  everything the agent needs to know, as one quoted argument; "-" reads standard input' >&2
    exit 2
fi
case $timeout in
    '' | *[!0-9]*) refuse "invalid HOCKET_HANDOFF_TIMEOUT: $timeout (must be a number of seconds)" ;;
esac
[ -n "$1" ] || refuse 'TASK is empty; inside an agent use "$HOCKET_TASK"'
[ -n "$2" ] || refuse 'AGENT is empty'

if command -v hocket >/dev/null 2>&1; then
    exec hocket handoff --timeout "$timeout" -- "$1" "$2" "$3"
fi
command -v curl >/dev/null 2>&1 || refuse 'neither hocket nor curl is on PATH'

task=$1 agent=$2 prompt=$3
if [ "$prompt" = - ]; then
    prompt=$(cat && echo .) # the dot keeps the last newlines, which the shell would drop
    prompt=${prompt%.}
fi
# From here on a character is a byte, so that invalid UTF-8 passes through unchanged.
LC_ALL=C
export LC_ALL

# --- JSON ---------------------------------------------------------------------------------------------------

# Print standard input as the inside of a JSON string, without the newline that the caller added at its end.
escape() {
    awk '
        BEGIN {
            for (code = 1; code < 32; code++) spelled[sprintf("%c", code)] = sprintf("\\u%04x", code)
            spelled["\""] = "\\\""
            spelled["\\"] = "\\\\"
        }
        {
            if (NR > 1) printf "%s", "\\n"
            size = length($0)
            for (place = 1; place <= size; place++) {
                letter = substr($0, place, 1)
                printf "%s", (letter in spelled) ? spelled[letter] : letter
            }
        }'
}

# Print standard input as one URL path segment.
quote() {
    awk '
        BEGIN { for (code = 1; code < 256; code++) number[sprintf("%c", code)] = code }
        {
            if (NR > 1) printf "%%0A"
            size = length($0)
            for (place = 1; place <= size; place++) {
                letter = substr($0, place, 1)
                if (letter ~ /[A-Za-z0-9._~-]/) printf "%s", letter
                else printf "%%%02X", number[letter]
            }
        }'
}

# pick PATH: print the decoded value at a path such as "data.output" of the JSON on standard input. With a second argument
# the text gets a final newline if it has none. Returns 1 if the value is missing or null, 2 if the input is not a JSON
# object.
#
# The text is split at its quotation marks, so that every other piece is the inside of a string. A piece that ends with an
# odd number of backslashes continues after the mark. This takes linear time for any number of escapes.
pick() {
    awk -v wanted="$1" -v ended="${2:-}" '
        function give(text) {
            if (text == "") return
            printf "%s", text
            last = substr(text, length(text), 1)
        }
        function give_byte(code) {
            printf "%c", code
            last = (code == 10) ? "\n" : "x"
        }
        function give_letter(code) {
            if (code < 128) give_byte(code)
            else if (code < 2048) {
                give_byte(192 + int(code / 64)); give_byte(128 + code % 64)
            } else if (code < 65536) {
                give_byte(224 + int(code / 4096)); give_byte(128 + int(code / 64) % 64); give_byte(128 + code % 64)
            } else {
                give_byte(240 + int(code / 262144)); give_byte(128 + int(code / 4096) % 64)
                give_byte(128 + int(code / 64) % 64); give_byte(128 + code % 64)
            }
        }
        function hex(text,   place, code) {
            code = 0
            for (place = 1; place <= 4; place++)
                code = code * 16 + index("0123456789abcdef", tolower(substr(text, place, 1))) - 1
            return code
        }
        # The low half of a surrogate pair; 0 if the next escape is not one.
        function second_half(part) {
            return (part ~ /^u[Dd][C-Fc-f][0-9A-Fa-f][0-9A-Fa-f]/) ? hex(substr(part, 2, 4)) : 0
        }
        function give_decoded(raw,   parts, part, place, letter, code, low) {
            parts = split(raw, part, /\\/)
            if (parts > 0) give(part[1])
            for (place = 2; place <= parts; place++) {
                letter = substr(part[place], 1, 1)
                if (part[place] == "") { give("\\"); place++; if (place <= parts) give(part[place]); continue }
                if (letter != "u") {
                    if (letter in plain) give(plain[letter]); else broken = 1
                    give(substr(part[place], 2))
                    continue
                }
                if (part[place] !~ /^u[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]/) { broken = 1; continue }
                code = hex(substr(part[place], 2, 4))
                if (code >= 55296 && code < 56320) {
                    low = (length(part[place]) == 5 && place < parts) ? second_half(part[place + 1]) : 0
                    if (low) { place++; code = 65536 + (code - 55296) * 1024 + low - 56320 } else code = 65533
                } else if (code >= 56320 && code < 57344) code = 65533
                give_letter(code)
                give(substr(part[place], 6))
            }
        }
        function backslashes(text,   count) {
            count = 0
            while (count < length(text) && substr(text, length(text) - count, 1) == "\\") count++
            return count
        }
        function path(   place, text) {
            text = ""
            for (place = 1; place <= depth; place++) text = text (place > 1 ? "." : "") (is_list[place] ? "[]" : key[place])
            return text
        }
        # End of a number, true, false or null.
        function bare_ends() {
            if (bare != "" && path() == wanted && bare != "null") { give(bare); found = 1 }
            bare = ""
        }
        function outside(text,   size, place, letter) {
            size = length(text)
            for (place = 1; place <= size; place++) {
                letter = substr(text, place, 1)
                if (letter == "{" || letter == "[") {
                    depth++; opened = 1; is_list[depth] = (letter == "["); key[depth] = ""; naming = (letter == "{")
                } else if (letter == "}" || letter == "]") {
                    bare_ends()
                    if (depth < 1 || is_list[depth] != (letter == "]")) broken = 1
                    depth--; naming = 0
                } else if (letter == ",") {
                    bare_ends(); naming = !is_list[depth]
                } else if (letter == ":") naming = 0
                else if (letter !~ /[ \t\r\n]/) bare = bare letter
            }
        }
        BEGIN {
            plain["n"] = "\n"; plain["t"] = "\t"; plain["r"] = "\r"
            plain["b"] = sprintf("%c", 8); plain["f"] = sprintf("%c", 12); plain["/"] = "/"
        }
        { text = text (NR > 1 ? "\n" : "") $0 }
        END {
            pieces = split(text, piece, /"/)
            if (pieces < 1 || piece[1] !~ /^[ \t\r\n]*\{/) exit 2
            for (at = 1; at <= pieces; at++) {
                outside(piece[at])
                if (++at > pieces) break
                is_wanted = !naming && path() == wanted
                name = ""
                while (backslashes(piece[at]) % 2) {
                    raw = substr(piece[at], 1, length(piece[at]) - 1)
                    if (is_wanted) { give_decoded(raw); give("\"") } else if (naming) name = name raw "\\\""
                    if (++at > pieces) exit 2
                }
                if (at == pieces) exit 2 # no closing mark
                if (is_wanted) { give_decoded(piece[at]); found = 1 } else if (naming) key[depth] = name piece[at]
            }
            if (broken || !opened || depth != 0) exit 2
            if (found && ended != "" && last != "" && last != "\n") printf "\n"
            exit !found
        }'
}

# --- HTTP ---------------------------------------------------------------------------------------------------

case ${HOCKET_URL:-} in
    unix:*) socket=${HOCKET_URL#unix:} base=http://localhost ;;
    http://*) socket='' base=${HOCKET_URL%/} ;;
    '') socket=${HOCKET_HOME:-${XDG_STATE_HOME:-${HOME:-}/.local/state}/hocket}/sock base=http://localhost ;;
    *) refuse "HOCKET_URL is neither unix:PATH nor http://…: $HOCKET_URL" ;;
esac

# ask METHOD PATH BODY: send a request and set `status` and `body`; the status is 000 without a response.
# Secrets are passed through a descriptor, because every user can read a command line.
ask() {
    set -- "$1" "$2" "$3" -q -sS --path-as-is --noproxy '*' --max-time 60 -K /dev/fd/3 -w '\n%{http_code}' -X "$1"
    method=$1 url=$base$2 content=$3
    shift 3
    [ -z "$socket" ] || set -- "$@" --unix-socket "$socket"
    [ "$method" = GET ] || set -- "$@" -H 'Content-Type: application/json' --data-binary @-
    answer=$(
        printf '%s' "$content" | curl "$@" "$url" 2>&1 3<<END
$headers
END
    )
    status=${answer##*
}
    body=${answer%
*}
    case $status in
        [1-5][0-9][0-9]) ;;
        *) status=000 body=$answer ;;
    esac
}

field() {
    printf '%s\n' "$body" | pick "$1"
}

# Print the server's error and exit.
refused() {
    message=$(field error.message) || refuse "unexpected response from the server (status $status)"
    complain "$message"
    hint=$(field error.hint) && [ -n "$hint" ] && printf 'hint: %s\n' "$hint" >&2
    [ "$(field error.code)" != not_trusted ] || exit 4
    exit 2
}

# --- The hand-off -------------------------------------------------------------------------------------------

idempotency=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
[ -n "$idempotency" ] || refuse 'cannot read random numbers from /dev/urandom'
headers="header = \"Idempotency-Key: $idempotency\""
if [ -n "${HOCKET_TOKEN:-}" ]; then
    headers="$headers
header = \"Authorization: Bearer $HOCKET_TOKEN\""
fi
began=$(date +%s)
tasks=/api/tasks/$(printf '%s\n' "$task" | quote)
request="{\"agentName\": \"$(printf '%s\n' "$agent" | escape)\", \"prompt\": \"$(printf '%s\n' "$prompt" | escape)\"}"

attempt=1
ask POST "$tasks/handoff" "$request"
while [ "$status" = 000 ] || [ "$status" = 503 ]; do
    [ "$attempt" -lt "$ATTEMPTS" ] || refuse "cannot reach the server: $body"
    attempt=$((attempt + 1))
    sleep 1
    ask POST "$tasks/handoff" "$request" # the same key: one hand-off, even if sent twice
done
[ "$status" -lt 400 ] || refused
handoff=$(field meta.handoff) || refuse "unexpected response from the server (status $status)"
run=$(field meta.run) || run=

record=$tasks/handoffs/$(printf '%s\n' "$handoff" | quote)
lost=
while :; do
    ask GET "$record" ''
    case $status in
        2??)
            state=$(field data.status) || refuse 'unexpected response from the server'
            case $state in
                done | failed | stopped | lost) break ;;
            esac
            lost=
            ;;
        4??) refused ;;
        *)
            # The server may be restarting; its runs continue in the meantime.
            [ -n "$lost" ] || complain "connection to the server lost, retrying: $body"
            lost=yes
            ;;
    esac
    if [ "$timeout" -gt 0 ] && [ $(($(date +%s) - began)) -ge "$timeout" ]; then
        complain "$agent is still running after $timeout seconds; get its result later: hocket handoff --result $run"
        exit 3
    fi
    sleep "$PAUSE"
done

if [ "$state" = "done" ]; then
    printf '%s\n' "$body" | pick data.output ended || refuse 'unexpected response from the server'
    exit 0
fi
reason=$(field data.reason) || reason=
complain "$(field data.output)"
case $reason in
    no_answer) exit 4 ;;
    budget) exit 5 ;;
esac
exit 1
