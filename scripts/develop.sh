#!/usr/bin/env bash
# Builds the native module with optimisations and installs Sutler into .venv, its Python files in place.
# Does nothing when that was done since the last change of what the module is made from.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The stamp lives inside the environment, so that whoever deletes the one deletes the other.
stamp=.venv/native-module.stamp
# Renewing the environment takes Sutler out of it, and is as good as a change.
sources=(crates Cargo.toml Cargo.lock pyproject.toml .venv/requirements.sha256)
if [ -e "$stamp" ] && [ -e python/sutler/_sutler.abi3.so ] &&
    [ -z "$(find "${sources[@]}" -newer "$stamp" -print -quit)" ]; then
    exit 0
fi

# Taken before the build: a file that changes while the compiler runs is newer than this.
begun="$(mktemp .venv/native-module.XXXXXX)"
trap 'rm -f "$begun"' EXIT
if ! .venv/bin/maturin develop --release --uv; then
    fail "the native module did not build; the compiler's message is above." \
        "if it is about nasm or SIMD, \`nasm -v\` must work in this shell: Sutler refuses a libjpeg-turbo without SIMD."
fi
mv "$begun" "$stamp"
