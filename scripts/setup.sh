#!/usr/bin/env bash
# Prepares everything that building and testing take. A second run finds it all in place and changes nothing.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

has cargo || fail "\`cargo\` is missing: most of Sutler is written in Rust." \
    "install Rust from https://rustup.rs, open a new shell and run the same command again."
has cc || install_package gcc "the image codecs are C libraries, compiled here"
# Without nasm libjpeg-turbo has no SIMD code and decodes 1.6 times slower; the build refuses that, so say it now.
has nasm || install_package nasm "libjpeg-turbo's SIMD code is written for this assembler"

scripts/python-environment.sh .venv dev
