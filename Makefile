# SPDX-License-Identifier: Apache-2.0
# One-line verbs. A check with logic is a test in tests/unit, a step with logic a script in scripts.

PYTHON ?= python3
BIN := .venv/bin
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
doctor: ## name each missing tool with its remedy, and say how long things take
	@$(PYTHON) scripts/doctor.py
setup: doctor ## environment, extension module, test servers; only what has changed
	@$(PYTHON) scripts/setup.py
bench-setup: setup ## the peers that benchmarks compare with
	@$(PYTHON) scripts/bench_setup.py
demo: setup ## train from a slow place, with and without Foresee; ORIGIN=s3://... for a bucket of yours
	$(BIN)/python examples/demo/run.py $(if $(ORIGIN),--origin $(ORIGIN))
test: doctor ## every unit and process test of both languages, as CI runs them
	@$(PYTHON) scripts/test.py
unit: doctor ## the unit tests alone
	@$(PYTHON) scripts/test.py unit
soak: doctor ## long and random: kills by the dozen, fresh seeds, hosts in namespaces, all of the oldest torch
	@$(PYTHON) scripts/test.py soak
durations: ## how long the tests of the last run took, by class and phase
	@$(PYTHON) scripts/durations.py
test-systems: setup ## tests against other programs: DLIO, Ray, frameworks, libCacheSim, emulators of stores, and Slurm, which root installs by apt; plans on 32 bits
	@$(PYTHON) scripts/setup.py --systems
	@$(PYTHON) scripts/systems.py
	$(BIN)/pytest -m systems tests/systems
check: setup ## everything else that CI asks for: form, lints, types, layers
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target check-rust check-python msrv
check-rust: ## format, lints and documents of the crates
	cargo fmt --all --check
	$(PYTHON) scripts/crates.py target/check cargo clippy --target-dir target/check --workspace --all-targets --all-features --locked --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(PYTHON) scripts/crates.py target/check cargo doc --target-dir target/check --workspace --no-deps --all-features --locked --quiet
check-python: setup ## format, lints, types, stubs, layers and spelling
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	for part in tests/types scripts benchmarks/loading benchmarks/gradients benchmarks/node benchmarks/peers benchmarks/predict benchmarks/stagger benchmarks/bucket examples/demo; do $(BIN)/mypy $$part || exit; done
	$(BIN)/mypy --explicit-package-bases $(filter-out examples/demo/%,$(wildcard examples/*/*.py))
	$(BIN)/python -m mypy.stubtest foresee._native
	$(BIN)/lint-imports
	$(BIN)/typos
msrv: ## what users build, with the oldest supported compiler
	rustup run --install $(MSRV) $(PYTHON) scripts/crates.py target/msrv cargo check --package foresee-python --locked --quiet --target-dir target/msrv
wheel: ## dist/*.whl for any Linux since glibc 2.28, tried in an empty environment
	@$(PYTHON) scripts/wheel.py
bench: bench-setup ## the loading benchmark; writes its results folder and the tables of the docs
	$(BIN)/python benchmarks/loading/run.py
	$(BIN)/python scripts/readme.py
fmt: ## format both languages
	cargo fmt --all
	$(BIN)/ruff format
	$(BIN)/ruff check --fix-only --quiet
clean: ## remove what was built; environments and caches of data stay
	cargo clean
	rm -rf dist

.PHONY: help doctor setup bench-setup demo test unit soak durations test-systems check check-rust check-python msrv wheel bench fmt clean
