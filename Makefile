# Two commands do everything, each installs first what is missing:
#   make demo    the main job: train across two emulated datacenters, compare with the model (results/demo/)
#   make test    the tests
# Both want a Debian 12 or 13 or like machine. The tests need root; the demo of a user who may not build a lab on the
# real clock is on the virtual one, whose kernel is built first (10 CPU-minutes).

PYTHON ?= python3
VENV := .venv
TESTBED := $(VENV)/bin/testbed
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled

.PHONY: demo test lint docs setup kernel clean

demo: setup
	@if why=$$($(VENV)/bin/python -m testbed.lab.real_clock); then \
		set --; \
	else \
		printf '%s\n' "$$why" 'so the demo is on the virtual clock' >&2; \
		$(TESTBED) kernel build || exit; \
		set -- --clock virtual; \
	fi; \
	$(TESTBED) run topologies/two-dc-longhaul.yaml workloads/tiny-gpt-pp4.yaml --out results/demo --overwrite "$$@"

LINT = $(VENV)/bin/ruff check --quiet . && $(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/mypy --no-error-summary

# Tests that measure in real time run alone, after all others. Tests of labs wait often, for real time to pass: two
# processes more than there are cores; lint, which has one, beside them. Hundreds of processes import what is here: its
# bytecode is kept, even where a machine's environment says otherwise.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup kernel
	@status=0; { $(LINT); } >$(VENV)/.lint 2>&1 & lint=$$!; \
	$(VENV)/bin/python -m pytest tests/vm tests/lab tests/conformance tests/unit -m "not alone" \
		--numprocesses $$(($$(nproc) + 2)) --maxprocesses 8 --dist loadfile --no-loadscope-reorder || status=1; \
	wait $$lint || status=1; cat $(VENV)/.lint; \
	$(VENV)/bin/python -m pytest $$(grep -l 'mark\.alone' tests/*/test_*.py) -m alone || status=1; \
	exit $$status

lint: setup
	@$(LINT)

# the documentation as a site, in site/
docs: setup
	$(VENV)/bin/zensical build --strict

# the kernel of the virtual clock: 10 CPU-minutes the first time; where it cannot be built its tests skip and say so
kernel: setup
	-$(TESTBED) kernel build

setup: packages $(READY) $(COMPILED)

.PHONY: packages
packages:
	@scripts/provision.sh

$(READY): requirements.txt pyproject.toml setup.py | packages
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
		{ echo "$(PYTHON) is no Python 3.11 to 3.14 (PYTHON=... names another)" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# the event model's machine code, so that no command has to wait for it: a quarter of a minute
$(COMPILED): $(READY) $(wildcard testbed/model/*.py testbed/search/*.py testbed/schedule/*.py)
	$(VENV)/bin/python -m testbed.schedule.compile_all
	@touch $@

clean:
	rm -rf $(VENV) site .cache .pytest_cache .ruff_cache
