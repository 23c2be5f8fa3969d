# Two commands do everything: `make results` and `make test`. Both set the environment up on their first call.
# `make dashboard` shows the training curves.
VENV ?= .venv
PYTHON ?= python3
CORES ?= all
CONFIG ?= config/default.yaml
BENCH ?=
# A folder of workflow/profiles: who runs the jobs instead of this machine's cores (docs/clusters.md).
PROFILE ?=

STUDY = $(shell sed -n 's/^study: *//p' $(CONFIG))
REPORT = $(if $(filter default,$(lastword $(STUDY))),results,results/$(lastword $(STUDY)))/report.html

INSTALLED := $(VENV)/.installed
PLUGIN := $(PROFILE:%=$(VENV)/.profile-%)
RUNNER = $(if $(PROFILE),--workflow-profile workflow/profiles/$(PROFILE),--cores $(CORES))
export PATH := $(abspath $(VENV))/bin:$(PATH)
# Numbers must not depend on a login: no telemetry, no tracker, no hub where the study needs none.
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
export TRACKIO_DIR ?= $(CURDIR)/results/tracking/trackio

.PHONY: install results ablations test test-hf lint smoke report lock clean dashboard bench bench-check flame docs

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	# torch alone and exactly: a local or CPU build of this very version is taken where one is offered.
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.lock)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# A run that was killed leaves Snakemake's lock behind; the jobs it had finished are kept.
results: $(INSTALLED) $(PLUGIN)
	$(VENV)/bin/python workflow/unlock.py all --configfile $(CONFIG)
	$(VENV)/bin/snakemake all $(RUNNER) --configfile $(CONFIG)

# What the reviewers asked for: eviction methods, other mixers, other choices of heads.
ablations: $(INSTALLED) $(PLUGIN)
	$(VENV)/bin/python workflow/unlock.py ablations --configfile $(CONFIG)
	$(VENV)/bin/snakemake ablations $(RUNNER) --configfile $(CONFIG)

smoke: $(INSTALLED)
	$(MAKE) results CONFIG=config/smoke.yaml

# One page with the claims, every table and figure, what they cost and what made them; of a finished run, as it is.
report: $(INSTALLED)
	$(VENV)/bin/snakemake all --report $(REPORT) --report-stylesheet workflow/report/report.css --configfile $(CONFIG)
	@echo "$(REPORT)"

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2

# The library's own tests of models on ours; its wheel has none, so they come from the source of the installed version.
build/hf/transformers_tests: tests/hf/unpack.py $(INSTALLED)
	rm -rf build/hf
	$(VENV)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary transformers \
		--dest build/hf $$($(VENV)/bin/python -m pip freeze | grep '^transformers==')
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --target build/hf parameterized==0.9.0
	$(VENV)/bin/python tests/hf/unpack.py build/hf
	touch $@

test-hf: build/hf/transformers_tests
	OMP_NUM_THREADS=1 PYTHONPATH=build/hf$${PYTHONPATH:+:$$PYTHONPATH} $(VENV)/bin/pytest -n 2 tests/hf

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/snakefmt --check Snakefile workflow
	$(VENV)/bin/snakemake --lint
	$(VENV)/bin/mypy

# Without their dependencies: those are locked already, and a study may be running on them.
$(VENV)/.tracking: requirements-tracking.lock $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	touch $@

dashboard: $(VENV)/.tracking
	mkdir -p results
	$(VENV)/bin/recurformer track results
	$(VENV)/bin/trackio show --project recurformer

# The plugin of a profile; what is locked stays as it is.
$(VENV)/.profile-%: pyproject.toml $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[$*]'
	touch $@

# The documents and the package's docstrings as a site; only the first call needs a network.
$(VENV)/.docs: pyproject.toml $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs
	rm -rf build/docs && mkdir -p build/docs
	git ls-files -z -- '*.md' CITATION.cff 'recorded/*.png' | xargs -0 cp --parents --target-directory build/docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# A peer that the benchmarks compare with, and the sampling profiler; they do without the peer.
$(VENV)/.bench: pyproject.toml $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

# Ratios within one run, with the goals beside them: docs/benchmarks.md. BENCH names topics and options.
bench: $(VENV)/.bench
	KINETO_LOG_LEVEL=9 $(VENV)/bin/python -m benchmarks $(BENCH) # without a line at every start of torch's profiler

bench-check: bench
	$(VENV)/bin/python -m benchmarks --check $(BENCH)

# What `make results` has still to run on this machine, its processes sampled: where each stage spends its time.
flame: $(VENV)/.bench
	$(VENV)/bin/python workflow/unlock.py all --configfile $(CONFIG)
	$(VENV)/bin/python -m benchmarks.flame -- $(VENV)/bin/snakemake all --cores $(CORES) --configfile $(CONFIG)

# The lock is what pip resolves from pyproject.toml in a fresh environment; `+cpu` is a build, not a version.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet $$(grep '^torch==' requirements.lock)
	build/lock/bin/python -m pip install --quiet '.[dev,longbench]'
	{ head -1 requirements.lock; build/lock/bin/python -m pip list --format=freeze \
		| grep -viE '^(recurformer|pip|setuptools)==' | sed 's/+cpu//' | sort -f; } > build/requirements.lock
	mv build/requirements.lock requirements.lock
	build/lock/bin/python -m pip install --quiet '.[tracking]'
	{ head -1 requirements-tracking.lock; build/lock/bin/python -m pip list --format=freeze | sort -f \
		| grep -viE "^(recurformer|pip|setuptools|$$(sed -n 's/==.*//p' requirements.lock | paste -sd '|'))=="; \
		} > build/requirements-tracking.lock
	mv build/requirements-tracking.lock requirements-tracking.lock

clean:
	rm -rf results/* figures/* site .snakemake
	git checkout -- results/README.md figures/README.md
