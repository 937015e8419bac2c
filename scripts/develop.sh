#!/usr/bin/env bash
# Builds the native module with optimisations and installs Sutler into .venv, its Python files in place.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! .venv/bin/maturin develop --release --uv; then
    fail "the native module did not build; the compiler's message is above." \
        "if it is about nasm or SIMD, \`nasm -v\` must work in this shell: Sutler refuses a libjpeg-turbo without SIMD."
fi
