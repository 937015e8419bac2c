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
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the tools: .venv with pinned packages, nasm where it is missing
	@scripts/setup.sh

.PHONY: develop
develop: setup ## Build the native module and install Sutler into .venv
	@scripts/develop.sh
