# Two commands do everything: `make results` and `make test`. Both set the environment up on their first call.
# `make dashboard` shows every run and the training curves.
VENV ?= .venv
PYTHON ?= python3
CORES ?= all
CONFIG ?= config/default.yaml
BENCH ?=
# trackio or mlflow: what `make dashboard` opens (docs/provenance.md).
TRACKER ?= trackio
# A folder of workflow/profiles, or a copy anywhere: who runs the jobs instead of this machine's cores (docs/clusters.md).
PROFILE ?=
# More words for Snakemake, such as the account and partition of a cluster.
SNAKEMAKE_ARGS ?=

STUDY_FILES = $(foreach file,$(CONFIG),$(or $(wildcard $(file)),$(error $(file): no such study; CONFIG names files such as config/default.yaml)))
STUDY = $(shell sed -nE "s/^study: *[\"']?([A-Za-z0-9_-]+).*/\1/p" $(STUDY_FILES))
REPORT = $(if $(filter default,$(lastword $(STUDY))),results,results/$(lastword $(STUDY)))/report.html

INSTALLED := $(VENV)/.installed
SITE := $(if $(PROFILE),$(or $(firstword $(wildcard $(PROFILE:%=workflow/profiles/%/profile.yaml) $(PROFILE:%=%/profile.yaml))),$(error \
	$(PROFILE): no such profile; PROFILE names a folder of workflow/profiles, or another one with a profile.yaml)))
# A copy has the plugin of its executor; one that no extra brings is installed by hand.
PLUGIN := $(if $(SITE),$(shell sed -nE 's/^executor: *([a-z-]+).*/\1/p' $(SITE) | while read one; do \
	grep -q "^$$one = \[" pyproject.toml && echo $(VENV)/.profile-$$one; done))
RUNNER = $(if $(SITE),--workflow-profile $(dir $(SITE)),--cores $(CORES))
export PATH := $(abspath $(VENV))/bin:$(PATH)
# The environment's own packages are meant, whatever a login sets.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX
export PIP_USER := 0
# Snakemake asks for a name and for a home that it may write to; a user id in a container may have neither.
export USER ?= $(shell id -u)
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/results/.home
endif
# Numbers must not depend on a login: no telemetry, no tracker, no hub where the study needs none.
unexport MPLBACKEND
export PYTHONUTF8 := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
export TRACKIO_DIR ?= $(CURDIR)/results/tracking/trackio

.PHONY: install cuda results ablations test test-hf lint smoke report lock clean dashboard dashboard-trackio dashboard-mlflow \
	bench bench-check docs

install: $(INSTALLED)

# Its commands and the editable package name the folders in which they were installed.
PLACE = $(CURDIR) $(abspath $(VENV))
ifneq ($(shell test -x $(VENV)/bin/python && cat $(INSTALLED) 2> /dev/null),$(PLACE))
.PHONY: $(INSTALLED)
endif

$(INSTALLED): requirements.lock pyproject.toml
	@case "$$(cat $@ 2> /dev/null)" in '' | *" $(abspath $(VENV))") ;; *) false ;; esac && \
		{ test -x $(VENV)/bin/python || test ! -L $(VENV)/bin/python; } || \
		{ echo "make: $(VENV) was made in another folder or by a Python that is gone; remove it: rm -r $(VENV)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	# The words of environment.yml. A local or CPU build of the locked torch is taken where one is offered.
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock -e .[suite]
	@rm -f $@ && echo "$(PLACE)" > $@

# mamba-ssm for GPUs, compiled with nvcc against the torch that is there.
$(VENV)/.cuda: containers/install-cuda pyproject.toml $(INSTALLED)
	containers/install-cuda --editable '.[cuda]'
	touch $@

cuda: $(VENV)/.cuda

results: $(INSTALLED) $(PLUGIN)
	$(VENV)/bin/snakemake all $(RUNNER) --configfile $(STUDY_FILES) $(SNAKEMAKE_ARGS)

# What the reviewers asked for: eviction methods, other mixers, other choices of heads.
ablations: $(INSTALLED) $(PLUGIN)
	$(VENV)/bin/snakemake ablations $(RUNNER) --configfile $(STUDY_FILES) $(SNAKEMAKE_ARGS)

smoke: $(INSTALLED)
	$(MAKE) results CONFIG=config/smoke.yaml

# One page with the claims, every table and figure, what they cost and what made them; of a finished run, as it is.
report: $(INSTALLED)
	$(VENV)/bin/snakemake all --report $(REPORT) --report-stylesheet workflow/report/report.css --configfile $(STUDY_FILES)
	@echo "$(REPORT)"

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2 --dist worksteal

# The library's own tests of models on ours; its wheel has none, so they come from the source of the installed version.
build/hf/transformers_tests: tests/hf/unpack.py $(INSTALLED)
	rm -rf build/hf
	$(VENV)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary transformers \
		--dest build/hf $$($(VENV)/bin/python -m pip freeze | grep '^transformers==')
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --target build/hf parameterized==0.9.0
	$(VENV)/bin/python tests/hf/unpack.py build/hf
	touch $@

test-hf: build/hf/transformers_tests
	OMP_NUM_THREADS=1 PYTHONPATH=build/hf $(VENV)/bin/pytest -n 2 tests/hf

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

# MLflow wants an older pyarrow than the locked one, so it has its own environment, with only what `recurformer track` needs.
$(VENV)/mlflow/.installed: pyproject.toml $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/mlflow
	$(VENV)/mlflow/bin/python -m pip install --quiet --disable-pip-version-check \
		"$$(sed -n 's/^mlflow = \["\(.*\)"\]/\1/p' pyproject.toml)" filelock tabulate wrapt
	$(VENV)/mlflow/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

dashboard-trackio: $(VENV)/.tracking
	$(VENV)/bin/recurformer track results figures
	$(VENV)/bin/trackio show --project recurformer

dashboard-mlflow: $(VENV)/mlflow/.installed
	$(VENV)/mlflow/bin/recurformer track results figures --to mlflow
	$(VENV)/mlflow/bin/mlflow server --backend-store-uri sqlite:///results/tracking/mlflow.db

dashboard: dashboard-$(TRACKER)

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
	find README.md CITATION.cff config docs recorded figures/README.md results/README.md \
		\( -name '*.md' -o -name '*.cff' -o -name '*.png' \) -exec cp --parents --target-directory build/docs {} +
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# A peer that the benchmarks compare with; they do without it, too.
$(VENV)/.bench: pyproject.toml $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

# Ratios within one run, with the goals beside them: docs/benchmarks.md. BENCH names topics and options.
bench: $(VENV)/.bench
	$(VENV)/bin/python -m benchmarks $(BENCH)

bench-check: bench
	$(VENV)/bin/python -m benchmarks --check $(BENCH)

# The lock is what pip resolves from pyproject.toml in a fresh environment; `+cpu` is a build, not a version.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet $$(grep '^torch==' requirements.lock)
	build/lock/bin/python -m pip install --quiet '.[suite,dev,longbench,serve]'
	{ head -1 requirements.lock; build/lock/bin/python -m pip list --format=freeze \
		| grep -viE '^(recurformer|pip|setuptools)==' | sed 's/+cpu//' | sort -f; } > build/requirements.lock
	mv build/requirements.lock requirements.lock
	build/lock/bin/python -m pip install --quiet '.[tracking]'
	{ head -1 requirements-tracking.lock; build/lock/bin/python -m pip list --format=freeze | sort -f \
		| grep -viE "^(recurformer|pip|setuptools|$$(sed -n 's/==.*//p' requirements.lock | paste -sd '|'))=="; \
		} > build/requirements-tracking.lock
	mv build/requirements-tracking.lock requirements-tracking.lock

clean:
	find results/ figures/ -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	rm -rf site .snakemake
