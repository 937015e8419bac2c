#!/usr/bin/env bash
# Usage: test-python.sh [PYTEST ARGUMENT...]
# Runs the Python tests that the arguments choose; without any, all of them. Most spend their time waiting for a process or
# on one core, so two halves run at the same time. What looks at the clock comes afterwards, and has the machine for itself.

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "$#" -gt 0 ]; then
    exec .venv/bin/pytest "$@"
fi

# About half of the time: all that is not in tests/python, and some of what is. Whatever else is there is the other half.
half=(README.md docs python/sutler tests/python/audio tests/python/conformance tests/python/detection tests/python/streams
    tests/python/test_dataset_state.py tests/python/test_hand_over.py tests/python/test_worker_processes.py
    tests/python/trainers)
alone=(tests/python/agent/test_different_transforms.py tests/python/analysis/test_accounting.py
    tests/python/analysis/test_analyze.py tests/python/analysis/test_shares.py tests/python/analysis/test_what_ifs.py
    tests/python/test_auto_workers.py tests/python/test_slow_items.py tests/python/test_stats.py)

log="$(mktemp)"
status=0
set -m # without it Ctrl-C is ignored by what runs beside, and by what it starts; some tests are about that
.venv/bin/pytest -o cache_dir=.pytest_cache/half "${half[@]}" </dev/null >"$log" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null || true; rm -f "$log"' EXIT
.venv/bin/pytest tests/python "${half[@]/#/--ignore=}" "${alone[@]/#/--ignore=}" || status=$?
[ "$status" -ne 2 ] || exit 2 # Ctrl-C
wait "$beside" || status=$?
trap 'rm -f "$log"' EXIT
cat "$log"
.venv/bin/pytest -o cache_dir=.pytest_cache/alone "${alone[@]}" || status=$?
exit "$status"
