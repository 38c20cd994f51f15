# Two commands do everything on a fresh machine: `make demo` and `make test`. A second run installs nothing.
PYTHON ?= python3
VENV ?= .venv
# How many tests run at a time, but for those that need the machine for themselves.
WORKERS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
EXTRAS := all,dev
PACKAGES := profiler collectors heatmap viz3d dashboards trainer
SOURCES := megascope $(PACKAGES) tests benchmarks examples

.PHONY: help setup demo demo-faults test prepare lint bench bench-long programs clean
help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/ -/'

setup: $(VENV)/.installed  ## Make the virtual environment and install megascope with everything it needs

# pip would compile what it installs on one core.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a few minutes the first time, nothing afterwards"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) 'setuptools>=77' wheel
	@$(PIP) --no-compile --no-build-isolation -e '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@ $(if $(findstring spark,$(EXTRAS)),$(VENV)/.spark)

# Spark is large, and neither the demo nor a page needs it.
$(VENV)/.spark: $(VENV)/.installed
	@test -e $@ && ! test $< -nt $@ || { $(PIP) --no-build-isolation -e '.[spark]' && touch $@; }

demo: setup  ## Train a small model 3D-parallel here, print the straggler report, serve the dashboards
	$(BIN)/megascope demo $(if $(filter 0,$(DEMO_SERVE)),--no-serve)

demo-faults: setup  ## Kill a rank of a training on two simulated hosts, and see it recover by itself
	@folder=runs/faults-$$(date -u +%Y%m%d-%H%M%S); CUDA_VISIBLE_DEVICES= $(BIN)/megascope supervise trainer/configs/faults.toml \
	  --hosts 2 --spares 1 --local --record.store $$folder/store --checkpoint.folder $$folder/checkpoints

# Two phases: many tests at a time, then those marked `alone`; `lint` beside the first. All is run, whatever fails, and a
# phase of which PYTEST_ARGS leaves nothing has not failed. Python keeps what it compiles: every process needs it anew.
PYTEST = $(BIN)/python -m pytest --durations=20 --durations-min=3
test: export PYTHONDONTWRITEBYTECODE =
test:  ## Run all tests and checks (PYTEST_ARGS=... narrows them)
	@$(MAKE) --no-print-directory -j2 prepare EXTRAS=all,dev,spark
	@mkdir -p build; timeout 900 sh -c '$(LINT)' >build/lint.log 2>&1 & lint=$$!; trap 'kill $$lint; exit 130' INT TERM; \
	ran=; failed=; \
	phase() { echo "== $$1"; name=$$1; shift; "$$@" || case $$? in 5) return;; *) failed="$$failed, $$name";; esac; ran=1; }; \
	phase 'tests beside each other' $(PYTEST) -n $(WORKERS) --dist worksteal -m 'not alone' $(PYTEST_ARGS); \
	echo '== lint'; wait $$lint || failed="$$failed, lint"; cat build/lint.log; \
	phase 'tests alone' $(PYTEST) -m alone $(PYTEST_ARGS); \
	test -n "$$ran" || failed="$$failed, to find a test"; \
	test -z "$$failed" || { echo "Failed: $${failed#, }"; exit 1; }

prepare: $(VENV)/.spark programs

# mypy follows no editable finder: it gets the package as a folder of links.
LINT = set -e; mkdir -p build/links/megascope; \
	ln -sfn $(addprefix $(CURDIR)/,$(filter-out %__pycache__,$(wildcard megascope/*))) $(addprefix $(CURDIR)/,$(PACKAGES)) build/links/megascope/; \
	set -x; $(BIN)/ruff check $(SOURCES); \
	$(BIN)/ruff format --check $(SOURCES); \
	$(BIN)/mypy -p megascope; \
	$(BIN)/mypy tests benchmarks examples

lint: setup  ## ruff and mypy --strict, tests included
	@$(LINT)

# Each prints one JSON object; `--help` after `-m benchmarks.NAME` tells what else it can do.
BENCH ?= recorder collectives collector clocks kills simulator store score whatif hang trainer_stragglers pages
BENCH_LONG ?= trainer techniques technique_costs checkpoints trainer_hangs faults
# Faults come five times each, after the first in other steps and to other ranks.
ARGUMENTS_faults ?= --repeat 5
MEASURE = $(foreach name,$(1),$(BIN)/python -m benchmarks.$(name) $(ARGUMENTS_$(name)) &&) true
bench: setup programs  ## Run the benchmarks (BENCH="hang store" runs these alone)
	$(call MEASURE,$(BENCH))

bench-long: setup programs  ## Run those that train over and over, some for over an hour (BENCH_LONG="faults trainer" runs these alone)
	$(call MEASURE,$(BENCH_LONG))

# A browser for the page tests, Java for those of Spark, and a compiler: GPU sampling is tested against a driver library
# that is made on the spot.
programs:
	@missing=; has() { command -v "$$1" >/dev/null; }; \
	has chromium || has google-chrome || missing="$$missing chromium"; \
	has java || missing="$$missing default-jre-headless"; \
	has cc || has gcc || has clang || missing="$$missing gcc libc6-dev"; \
	test -z "$$missing" || { \
	  echo "Installing for the tests:$$missing"; \
	  apt="$$(test "$$(id -u)" = 0 || echo sudo) env DEBIAN_FRONTEND=noninteractive apt-get"; \
	  $$apt update -qq && $$apt install -y -qq $$missing >/dev/null; }

clean:  ## Remove the virtual environment and everything built
	rm -rf $(VENV) build *.egg-info
