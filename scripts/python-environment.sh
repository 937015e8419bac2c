#!/usr/bin/env bash
# Usage: python-environment.sh DIRECTORY SET...
# Makes DIRECTORY a virtual environment that holds exactly requirements/SET.txt, for all the sets together, and uv.
# Does nothing when it already does.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

directory="$1"
shift
requirements=(requirements/bootstrap.txt)
for set_name in "$@"; do
    requirements+=("requirements/$set_name.txt")
done

base_python="${PYTHON:-python3}"
has "$base_python" || install_package python3 "Sutler's front and its tools are written in Python"
"$base_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "\`$base_python\` is $("$base_python" --version 2>&1), and Sutler needs Python 3.11 or later." \
        "pass a later one, for example \`make PYTHON=python3.12 setup\`."

# The stamp lives inside the environment, so that whoever deletes the one deletes the other.
stamp="$directory/requirements.sha256"
wanted="$(cat "${requirements[@]}" | sha256sum)"
if [ -x "$directory/bin/uv" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

if [ ! -x "$directory/bin/uv" ]; then
    say "Making a virtual environment in $directory."
    rm -rf "$directory"
    hash -r # the Python found so far may have been the one just deleted
    if ! "$base_python" -m venv "$directory" >/dev/null 2>&1; then
        # Debian ships venv without the pip it needs in a package of its own.
        install_package python3-venv "\`$base_python -m venv\` cannot make a virtual environment without it"
        rm -rf "$directory"
        "$base_python" -m venv "$directory" ||
            fail "\`$base_python -m venv $directory\` does not work; its message is above." \
                "pass a Python whose venv works, for example \`make PYTHON=/usr/bin/python3 setup\`."
    fi
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements/bootstrap.txt ||
        fail "pip could not install uv into $directory; its message is above." \
            "check that this machine reaches a package index, then run the same command again."
fi

say "Installing ${requirements[*]} into $directory; on a new machine this takes some minutes."
"$directory/bin/uv" pip sync --quiet --python "$directory/bin/python" "${requirements[@]}" ||
    fail "uv could not install ${requirements[*]} into $directory; its message is above." \
        "check the network and the free disk space, then run the same command again."
printf '%s\n' "$wanted" >"$stamp"
