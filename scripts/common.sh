# shellcheck shell=bash
# What every script needs: the place of the checkout, messages, and the one way to install a system package.

set -euo pipefail

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$repository"

say() {
    printf 'sutler: %s\n' "$*" >&2
}

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    local hint
    for hint in "$@"; do
        printf 'hint: %s\n' "$hint" >&2
    done
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# install_package PACKAGE REASON: installs a Debian package, or explains who has to.
install_package() {
    local package="$1" reason="$2" as_root=()
    if ! has apt-get; then
        fail "\`$package\` is missing: $reason. This machine has no apt-get to install it with." \
            "install \`$package\` with the package manager of this system and run the same command again."
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if has sudo && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        else
            fail "\`$package\` is missing: $reason. Only root may install it." \
                "run \`sudo apt-get install $package\` and then the same command again."
        fi
    fi
    say "Installing the system package \`$package\`: $reason."
    if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >/dev/null 2>&1; then
        # The package lists of a fresh machine are empty or old; one refresh settles both.
        "${as_root[@]}" apt-get update -q >/dev/null ||
            fail "\`apt-get update\` did not work, so \`$package\` cannot be installed." \
                "check the network and the package sources of this machine."
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >&2 ||
            fail "apt-get could not install \`$package\`: $reason." \
                "read apt-get's message above; then run the same command again."
    fi
}
