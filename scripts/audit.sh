#!/usr/bin/env bash
# Checks what Sutler is made of: licences, known vulnerabilities, sources, and dependencies nobody uses.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Built once, into the checkout; cargo reinstalls only when the version changes.
tools="$repository/target/tools"
cargo install --quiet --locked --root "$tools" cargo-deny@0.20.2 cargo-machete@0.9.2 ||
    fail "cargo could not install cargo-deny and cargo-machete; its message is above." \
        "check that this machine reaches the crate registry, then run \`make audit\` again."
export PATH="$tools/bin:$PATH"

say "Checking licences, duplicates and sources."
cargo deny --log-level error check licenses bans sources
say "Checking for dependencies that nothing uses."
cargo machete
say "Checking for known vulnerabilities."
if ! cargo deny fetch db 2>/dev/null; then
    say "The advisory database cannot be fetched from here, so known vulnerabilities were NOT checked."
    exit 0
fi
cargo deny --log-level error check advisories
