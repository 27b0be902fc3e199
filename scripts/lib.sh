# shellcheck shell=bash
# Shared by the scripts: find a Python, keep a virtual environment up to date. Sourced, never run.

# Programs from the system that the tests call; scripts/test installs what is missing where it may.
SYSTEM_PROGRAMS="strace curl shellcheck gawk mawk busybox"

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
# The stamp makes a second call cheap: it holds what the environment was made for.
ensure_venv() {
    local directory=$1 extra=${2:-} python stamp wanted
    stamp="$directory/.made-for"
    wanted="$PWD $extra $(cksum <pyproject.toml)"
    if [ -x "$directory/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    if [ ! -x "$directory/bin/python" ]; then
        python=$(find_python)
        "$python" -m venv "$directory"
    fi
    echo "installing into $directory ..." >&2
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}" >&2
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
            echo "could not install:$missing (tests that need them say so)" >&2
    else
        echo "not installed:$missing (tests that need them say so)" >&2
    fi
}
