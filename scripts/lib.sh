# shellcheck shell=bash
# Functions shared by the scripts: find a Python, keep a virtual environment up to date. Sourced, never run.

# Programs from the system that the tests call; scripts/test installs what is missing where it may.
SYSTEM_PROGRAMS="tmux strace curl shellcheck gawk mawk busybox jq zsh fish"

# The Codex CLI that the tests drive, and that the recordings in tests/golden/codex were made with.
CODEX_VERSION="0.166.0"

# Compiled files make every start of the command line several times faster.
unset PYTHONDONTWRITEBYTECODE

find_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return 0
        fi
    done
    echo "Python 3.11 or newer, with its venv module, is needed and none was found on PATH." >&2
    echo "hint: on Debian and Ubuntu: apt-get install python3 python3-venv" >&2
    return 1
}

# usage: ensure_venv DIRECTORY [EXTRA]
# The stamp records what the environment was made for, so that a second call returns at once.
ensure_venv() {
    local directory=$1 extra=${2:-} python stamp wanted constraints=()
    stamp="$directory/.made-for"
    wanted="$PWD $extra $(cat pyproject.toml tests/constraints.txt | cksum)"
    if [ -x "$directory/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    if [ ! -x "$directory/bin/python" ]; then
        python=$(find_python)
        "$python" -m venv "$directory"
    fi
    [ "$extra" != test ] || constraints=(--constraint tests/constraints.txt)
    echo "installing into $directory ..." >&2
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check \
        "${constraints[@]+"${constraints[@]}"}" --editable ".${extra:+[$extra]}" >&2
    echo "$wanted" >"$stamp"
}

ensure_system_programs() {
    local program missing=""
    for program in $SYSTEM_PROGRAMS; do
        command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        # shellcheck disable=SC2086 # a list of words on purpose
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null </dev/null ||
            { apt-get update -qq </dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null </dev/null; } ||
            echo "could not install:$missing (tests that need them report it)" >&2
    else
        echo "not installed:$missing (tests that need them report it)" >&2
    fi
}

# usage: ensure_codex DIRECTORY
# Installs the real Codex CLI from npm, with its program at DIRECTORY/node_modules/.bin/codex.
ensure_codex() {
    local directory=$1 stamp="$1/.version"
    if [ -x "$directory/node_modules/.bin/codex" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$CODEX_VERSION" ]; then
        return 0
    fi
    if ! command -v npm >/dev/null 2>&1; then
        echo "npm was not found, so the Codex CLI is not installed and its tests fail." >&2
        echo "hint: install Node.js 20 or newer with npm, then run this again" >&2
        return 0
    fi
    echo "installing the Codex CLI $CODEX_VERSION into $directory ..." >&2
    mkdir -p "$directory"
    if npm install --silent --no-audit --no-fund --prefix "$directory" "@openai/codex@$CODEX_VERSION" >&2 </dev/null; then
        echo "$CODEX_VERSION" >"$stamp"
    else
        echo "npm could not install the Codex CLI; its tests fail." >&2
    fi
}
