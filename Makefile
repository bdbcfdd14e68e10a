# Towpath. `make` alone lists what there is to make.

SHELL := /bin/bash
.DEFAULT_GOAL := help
TARGET := $(or $(CARGO_TARGET_DIR),target)

# What `make bench` and `make report` measure, how long `make soak` and each target of `make fuzz` run.
BENCH ?= redis
MINUTES ?= 30
SECONDS_EACH ?= 60

# Where `make install` puts it, below DESTDIR if that is set, and the folder with what was built.
PREFIX ?= /usr/local
DESTDIR ?=
BUILT ?= $(TARGET)/release
export PREFIX DESTDIR

.PHONY: help setup build install uninstall test demo bench report soak fuzz bpf tidy clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing on Debian or Ubuntu: programs to run through Towpath, tools for the tests.
	@scripts/setup

build: setup ## Build everything, optimised, into target/release.
	cargo build --workspace --release
	@scripts/libraries

install: ## Install what `make build` has built below PREFIX=/usr/local: program, library, documents, systemd unit.
	@scripts/install $(BUILT)

uninstall: ## Remove what `make install` has put below PREFIX=/usr/local.
	@scripts/install $(BUILT) uninstall

test: setup ## Run every test: format, lints, unit tests, loom models, real programs; 20 to 35 minutes on two cores.
	@scripts/test

demo: build ## Run redis through Towpath and on the kernel, side by side, and show what it bought.
	@$(TARGET)/release/towpath demo

bench: build ## Measure Towpath and its peers in the same run; BENCH=NAME chooses what (redis).
	@for name in $(BENCH); do $(TARGET)/release/towpath bench "$$name" || exit; done

report: build ## Measure BENCH="NAME ..." and write one page with every number to target/report.
	@scripts/report $(BENCH)

soak: ## Repeat the tests and the simulator with new seeds for MINUTES=30; stops at the first failure.
	@scripts/setup soak
	@scripts/soak $(MINUTES)

fuzz: ## Fuzz each parser for SECONDS_EACH=60; needs cargo-fuzz and a nightly toolchain.
	@scripts/fuzz $(SECONDS_EACH)

bpf: ## Build the kernel programs of crate ccp-linux anew; needs clang and llvm.
	@scripts/bpf

tidy: ## Check the dependency law, where unsafe and clocks may be, and the shape of the files.
	@cargo xtask tidy

clean: ## Remove everything that was built.
	cargo clean
	rm -rf fuzz/target
