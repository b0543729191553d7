# make demo   run the demo on the embedded broker; needs only Python >= 3.11
# make test   run every test in its short form, against a Pulsar broker; needs Java 17 and Maven too (or PULSAR_URL)
# make test-fast  run the tests that start no process and no broker; without slow ones, those with a long form and those of benchmarks
# make test-long  run the tests that have a long form: 10,000 scenarios, a million calls, ten times the property tests' examples
# make setup  create .venv with what the README, the tutorial and examples/ need; then: . .venv/bin/activate
# make dev    add all development tools to it
# make bench  run the benchmarks: guards against other libraries, functions as tools, reading a model's calls, then calls through a Pulsar broker
# make bench-search  measure tool search on MetaTool's queries; select the data with: make bench-search DATA=FOLDER
# make adapters  test the adapters of agent frameworks, each in an environment of its own; select with ADAPTERS='langchain'
# make bench-learning  evaluate learned scores of a toolkit: recall@3 of the next tool; no broker, a minute
# make dashboards  write the dashboards' JSON and draw their pictures from live runs; needs prometheus
# make simulate  simulate failing services in virtual time: without guards, with naive guards, with dispatch; no broker
# make mutation  run mutation tests of breaker, budget, limiter, correlation and sessions; select with ARGS='dispatch.resilience.retry*'
# make coverage  measure branch coverage of the pure cores of resilience and balancing; must be 100 %
# make docs   write the tables of the reference pages from the code, build the site in site/; a broken link or reference fails
# make docs-serve  serve the site at http://127.0.0.1:8000, rebuilt on every change
# make lint   run ruff, mypy and import-linter (layers, cycles)
# make figures  count files, code lines and imports of dispatch, and walk one call
# make clean  delete everything that was built here

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
## Test processes: they often wait for brokers and services, so 3 keep two cores busy.
JOBS ?= 3
## TrustGraph's services, for the tests: without their 30 dependencies, of which the tests need none.
TRUSTGRAPH := $(shell sed -n 's/.*trustgraph-base==\([0-9.]*\).*/\1/p' pyproject.toml)
ADAPTERS ?= $(basename $(notdir $(wildcard tests/adapters/requirements/*.txt)))
SOURCES := pyproject.toml dispatch/version.py

## The tests start hundreds of Python processes: without bytecode files each compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: adapters dev figures help setup demo test test-fast test-long lint bench bench-learning bench-search simulate dashboards mutation coverage clean docs docs-serve

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dispatch needs Python 3.11 or newer; select it with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.demo: $(BIN)/python $(SOURCES)
	@echo "Setting up ($(VENV)) …"
	@$(PIP) install -e '.[cli]'
	@touch $@

$(VENV)/.setup: $(BIN)/python $(SOURCES)
	@echo "Setting up ($(VENV)), with what the examples need …"
	@$(PIP) install -e '.[cli,yaml,watch,otel,functions,mcp,toolkit]'
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: $(BIN)/python $(SOURCES)
	@echo "Setting up ($(VENV)), with everything for the tests …"
	@$(PIP) install -e '.[dev]'
	@$(PIP) install --no-deps trustgraph-flow==$(TRUSTGRAPH)
	@touch $@ $(VENV)/.demo $(VENV)/.setup

$(VENV)/.peers: $(VENV)/.dev
	@echo "Setting up ($(VENV)), with the libraries that guards are compared with …"
	@$(PIP) install -e '.[peers]'
	@touch $@

$(VENV)/.mutation: $(VENV)/.dev
	@echo "Setting up ($(VENV)), with mutmut …"
	@$(PIP) install -e '.[mutation]'
	@touch $@

setup: $(VENV)/.setup

dev: $(VENV)/.dev

demo: $(VENV)/.demo
	@$(BIN)/dispatch demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-fast: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not process and not slow and not long' --ignore tests/benchmarks \
	  --hypothesis-profile=fast $(ARGS)

test-long: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --long-profile $(ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --verbose >/dev/null || $(BIN)/lint-imports --no-cache

figures: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.figures

docs: $(VENV)/.dev
	@$(BIN)/python -m docs.generators.pages
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs site
	@echo "The documentation is in site/index.html"

docs-serve: $(VENV)/.dev
	@$(BIN)/python -m sphinx_autobuild -q -d build/doctrees --watch dispatch --watch CHANGELOG.md docs site

bench: $(VENV)/.dev $(VENV)/.peers
	@$(BIN)/python -m benchmarks.micro.guards
	@$(BIN)/python -m benchmarks.micro.telemetry
	@$(BIN)/python -m benchmarks.functions
	@$(BIN)/python -m benchmarks.calling
	@$(BIN)/python -m benchmarks.mcp
	@$(BIN)/python -m benchmarks $(ARGS)

bench-search: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.search $(if $(DATA),--data $(DATA)) $(ARGS)

adapters: $(BIN)/python
	@set -e; for each in $(ADAPTERS); do \
	  environment=$(VENV)-adapters/$$each; \
	  echo "Setting up ($$environment) …"; \
	  test -x $$environment/bin/python || $(PYTHON) -m venv $$environment; \
	  $$environment/bin/python -m pip --disable-pip-version-check --quiet install -r tests/adapters/requirements/$$each.txt; \
	  PYTHONPATH=$(CURDIR) $$environment/bin/python -m pytest -c tests/adapters/pytest.ini --rootdir . --confcutdir tests/adapters \
	    -p no:cacheprovider tests/adapters/test_$$each.py; \
	done

bench-learning: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.learning $(ARGS)

dashboards: $(VENV)/.dev
	@$(BIN)/python -m dashboards.generate
	@$(BIN)/python -m dashboards.draw
	@$(BIN)/python -m dashboards.draw --demo
	@$(BIN)/python -m dashboards.agent_picture

simulate: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.simulation $(ARGS)

## Restarts each time: earlier verdicts ignore changes of the tests.
mutation: $(VENV)/.mutation
	@rm -rf mutants
	@$(BIN)/mutmut run $(ARGS)
	@$(BIN)/python -m tests.helpers.mutation_report $(ARGS)

coverage: $(VENV)/.dev
	@$(BIN)/python -m coverage run --branch --source=dispatch/resilience,dispatch/balancing \
	  --omit='*/aio.py' -m pytest -q tests/unit/resilience tests/unit/balancing tests/model
	@$(BIN)/python -m coverage report --skip-covered --show-missing --fail-under=100

clean:
	rm -rf $(VENV) $(VENV)-adapters $(VENV)-mcp .pytest_cache .coverage .mypy_cache .ruff_cache .hypothesis build dist site *.egg-info benchmarks/results mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
