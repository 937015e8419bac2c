#!/usr/bin/env bash
# Usage: PYTHON=python3.14t test-free-threaded.sh [PYTEST ARGUMENT...]
# Builds the native module for a Python without a global interpreter lock and runs the tests of datasets written in
# Python there, where their workers are threads unless a test says otherwise.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

base_python="${PYTHON:-python3.14t}"
environment=.venv-free-threaded
python="$environment/bin/python"

has "$base_python" || fail "\`$base_python\` is not there." \
    "pass a free-threaded Python, for example \`make test-free-threaded PYTHON=/opt/python/bin/python3.14t\`."
"$base_python" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED") or sys.version_info < (3, 14))' ||
    fail "\`$base_python\` is $("$base_python" --version 2>&1), not a free-threaded Python of version 3.14 or later." \
        "build one with \`./configure --disable-gil\`, or install one that somebody has built."

# The other packages that the tests know have no builds for it; tests that need one of them are skipped.
packages=(hypothesis numpy pillow pytest sybil torch)
stamp="$environment/packages"
wanted="$("$base_python" --version) ${packages[*]} $(sha256sum <requirements/dev.txt)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "Installing ${packages[*]} into $environment."
    "$base_python" -m venv --clear "$environment"
    "$python" -m pip install --quiet --disable-pip-version-check --constraint requirements/dev.txt "${packages[@]}" ||
        fail "pip could not install ${packages[*]} into $environment; its message is above." \
            "check that this machine reaches a package index that has builds for \`$base_python\`."
    printf '%s' "$wanted" >"$stamp"
fi

# The stable ABI, which one wheel for all other Pythons has, is not theirs before 3.15: PyO3 sees that, and builds for this
# version. In a folder of its own, since the next build for another Python would begin anew in a shared one.
VIRTUAL_ENV="$repository/$environment" .venv/bin/maturin develop --release --locked --target-dir target/free-threaded ||
    fail "the native module did not build; the compiler's message is above."

# A library that is not ready for it turns the lock on again, and the tests would be of processes.
"$python" -c 'import sys, torch, sutler; sys.exit(sys._is_gil_enabled())' ||
    fail "a library has turned the global interpreter lock on; Python names it above."
tests=(threads streams test_payload.py test_resume.py test_ready_order.py test_samplers.py test_schema.py
    test_slow_items.py test_worker_collation.py test_worker_processes.py)
"$python" -m pytest -m "not processes" docs/guides/python-datasets.md "${tests[@]/#/tests/python/}" "$@"
