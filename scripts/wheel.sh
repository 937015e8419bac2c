#!/usr/bin/env bash
# Builds one wheel for every Python from 3.11 on, and tries it in an empty environment.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/python-environment.sh .venv-wheel wheel
export PATH="$repository/.venv-wheel/bin:$PATH"
export VIRTUAL_ENV="$repository/.venv-wheel"

# Zig links against the glibc of 2018 (manylinux_2_28), so the wheel also runs on systems older than this one.
rm -f dist/sutler-*.whl
maturin build --release --locked --zig --compatibility manylinux_2_28 --out dist ||
    fail "the wheel did not build; the message is above." \
        "\`maturin build --release --out dist\` builds one for systems like this one only."

trial="$(mktemp -d)"
trap 'rm -rf "$trial"' EXIT
wheels=(dist/sutler-*.whl)
uv venv --quiet "$trial"
uv pip install --quiet --python "$trial/bin/python" "${wheels[0]}"
(cd "$trial" && bin/python -c 'import sutler' && bin/sutler --help >/dev/null) ||
    fail "${wheels[0]} was built and installed, but does not run; the message is above."
say "${wheels[0]} installs and runs in an empty environment."
