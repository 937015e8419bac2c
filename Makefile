# Everything one does with a checkout of Sutler. `make` alone lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Cargo, maturin and the tests must see the same Python and the same CMake, or each would rebuild what another built.
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONHOME PYTHONPATH

.PHONY: help
help: ## List what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the tools: .venv with pinned packages, nasm where it is missing
	@scripts/setup.sh

.PHONY: develop
develop: setup ## Build the native module and install Sutler into .venv
	@scripts/develop.sh

.PHONY: demo
demo: develop ## Feed two training jobs from a generated dataset and print what they got (DEMO="--help" for its options)
	@.venv/bin/sutler demo $(DEMO)

.PHONY: test
test: test-rust test-python ## Run every test: Rust, Python, docstrings, and the code in README.md and docs/

.PHONY: test-rust
test-rust: setup ## Run the Rust tests (RUST="-p sutler-core ledger" for some of them)
	@cargo test $(or $(RUST),--workspace)

.PHONY: test-python
test-python: develop ## Run the Python tests (PYTEST="-k resume" for some of them)
	@scripts/test-python.sh $(PYTEST)

.PHONY: test-free-threaded
test-free-threaded: ## Run the tests of Python datasets where workers are threads (PYTHON=python3.14t, PYTEST="-k resume")
	@env -u PYTHON scripts/setup.sh # the tools are not for that Python
	@PYTHON="$(PYTHON)" scripts/test-free-threaded.sh $(PYTEST)

.PHONY: left-behind
left-behind: develop ## Interrupt training jobs at random moments and look for what is left (ROUNDS=200, SEED= to repeat)
	@SUTLER_LEFT_BEHIND_ROUNDS=$(or $(ROUNDS),200) SUTLER_LEFT_BEHIND_SEED=$(or $(SEED),0) \
		.venv/bin/pytest -o faulthandler_timeout=0 tests/python/left_behind

.PHONY: lint
lint: setup ## Check formatting, lints and types
	@scripts/lint.sh

.PHONY: format
format: setup ## Rewrite the sources in the one format
	@cargo fmt --all
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

.PHONY: bench
bench: develop ## Measure Sutler against its peers, interleaved (BENCH="--help" for its options)
	@scripts/python-environment.sh .venv-peers peers
	@PYTHONPATH=python .venv-peers/bin/python -m benchmarks $(BENCH)

.PHONY: wheel
wheel: setup ## Write dist/*.whl and try it in an empty environment
	@scripts/wheel.sh

# Not --quiet: it hides warnings from --strict, too.
.PHONY: docs
docs: ## Write the documentation site to site/
	@scripts/python-environment.sh .venv-docs docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "The site is in site/; open site/index.html."

.PHONY: differences
differences: setup ## Write the table of differences from PyTorch's DataLoader into the documentation, from the tests' list
	@.venv/bin/python scripts/write_differences.py

.PHONY: audit
audit: ## Check the licences, advisories and sources of dependencies, and that each is used
	@scripts/audit.sh

.PHONY: requirements
requirements: setup ## Pin the current versions of all Python packages in requirements/*.txt
	@scripts/requirements.sh

.PHONY: clean
clean: ## Delete whatever make made: builds, environments, caches
	@rm -rf target dist site .venv .venv-docs .venv-free-threaded .venv-peers .venv-wheel .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find python tests benchmarks examples \( -name '__pycache__' -o -name '_sutler*.so' \) -prune -exec rm -rf {} + 2>/dev/null || true
