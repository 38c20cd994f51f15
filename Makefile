# Two commands do everything on a fresh machine: `make demo` and `make test`. A second run installs nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGES := profiler collectors heatmap viz3d dashboards trainer
SOURCES := megascope $(PACKAGES) tests benchmarks examples

.PHONY: help setup demo demo-faults test lint bench java compiler chromium clean
help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/ -/'

setup: $(VENV)/.installed  ## Make the virtual environment and install megascope with everything it needs

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a few minutes the first time, nothing afterwards"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt 'setuptools>=77' wheel
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[all,dev]'
	@touch $@

demo: setup  ## Train a small model 3D-parallel here, print the straggler report, serve the dashboards
	$(BIN)/megascope demo $(if $(filter 0,$(DEMO_SERVE)),--no-serve)

demo-faults: setup  ## Kill a rank of a training on two simulated hosts, and see it recover by itself
	@folder=runs/faults-$$(date -u +%Y%m%d-%H%M%S); CUDA_VISIBLE_DEVICES= $(BIN)/megascope supervise trainer/configs/faults.toml \
	  --hosts 2 --spares 1 --local --record.store $$folder/store --checkpoint.folder $$folder/checkpoints

test: setup chromium java compiler $(VENV)/.spark lint  ## Run all tests and checks (PYTEST_ARGS=... narrows them)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# mypy follows no editable finder: it gets the package as a folder of links.
lint: setup  ## ruff and mypy --strict, tests included
	@mkdir -p build/links/megascope
	@ln -sfn $(addprefix $(CURDIR)/,$(filter-out %__pycache__,$(wildcard megascope/*))) $(addprefix $(CURDIR)/,$(PACKAGES)) build/links/megascope/
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy -p megascope
	$(BIN)/mypy tests benchmarks examples

bench: setup chromium  ## Run the benchmarks; each prints one JSON object
	for name in recorder collectives collector clocks kills simulator store score whatif trainer_stragglers pages; do $(BIN)/python -m benchmarks.$$name || exit 1; done

# Spark is large, and neither the demo nor a page needs it.
$(VENV)/.spark: $(VENV)/.installed
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[spark]'
	@touch $@

java:
	@command -v java >/dev/null || { \
	  echo "Installing Java for the tests of Spark"; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$SUDO apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq default-jre-headless >/dev/null; }

compiler:
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || { \
	  echo "Installing a C compiler: the tests of GPU sampling make a driver library of their own"; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$SUDO apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq gcc libc6-dev >/dev/null; }

chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  echo "Installing Chromium for the page tests"; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$SUDO apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq chromium >/dev/null; }

clean:  ## Remove the virtual environment and everything built
	rm -rf $(VENV) build *.egg-info
