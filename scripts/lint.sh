#!/usr/bin/env bash
# Runs every static check, and goes on after a failure, so that one run shows all there is to mend.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

failed=()
check() {
    local name="$1"
    shift
    say "$name"
    "$@" || failed+=("$name")
}

# mypy takes a minute on one core, and the compiler now and then leaves one over: so it runs beside.
mypy_says="$(mktemp)"
.venv/bin/mypy >"$mypy_says" 2>&1 &
mypy=$!
trap 'kill "$mypy" 2>/dev/null || true; rm -f "$mypy_says"' EXIT

check "cargo fmt" cargo fmt --all --check
check "cargo clippy" cargo clippy --workspace --all-targets --quiet -- -D warnings
check "ruff check" .venv/bin/ruff check --quiet .
check "ruff format" .venv/bin/ruff format --check --quiet .
if has shellcheck; then
    check "shellcheck" shellcheck -x scripts/*.sh .ci/run
else
    say "shellcheck is not installed, so the shell scripts were not checked."
fi

finish_mypy() {
    local status=0
    wait "$mypy" || status=$?
    cat "$mypy_says"
    return "$status"
}
check "mypy" finish_mypy

if [ "${#failed[@]}" -gt 0 ]; then
    fail "these checks failed: $(printf '%s; ' "${failed[@]}")their messages are above." \
        "\`make format\` mends what is about formatting."
fi
