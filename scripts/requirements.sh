#!/usr/bin/env bash
# Compiles requirements/*.in to requirements/*.txt with the newest versions that fit together.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# In this order, as the later sets are constrained by the earlier ones.
for set_name in bootstrap dev docs wheel peers; do
    say "Pinning requirements/$set_name.txt."
    # --universal: one file for every platform. --no-emit-index-url: where packages come from is each machine's own affair.
    .venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url \
        --custom-compile-command "make requirements" \
        --output-file "requirements/$set_name.txt" "requirements/$set_name.in"
done
