# make demo   run the demo on the embedded broker; needs only Python >= 3.11
# make test   run every test in its short form, against a Pulsar broker; needs Java 17 and Maven too (or PULSAR_URL)
# make test-fast  run the tests that start no process and no broker; without slow and costly ones, those with a long form, and those of benchmarks, adapters and integration
# make test-long  run the tests that have a long form: 10,000 scenarios, a million calls, 25 times the property tests' examples
# make test-cluster  run the tests on a cluster of three brokers that are killed, restarted, suspended and unloaded; part of test-long
# make test-versions  run the integration tests on other versions of Pulsar; select with VERSIONS='3.0.16 4.2.4'
# make setup  create .venv with what the README, the tutorial and examples/ need; then: . .venv/bin/activate
# make dev    add all development tools to it
# make bench  run the benchmarks: guards against other libraries, functions as tools, reading a model's calls, then calls through a Pulsar broker
# make bench-peers  measure dispatch beside NATS, gRPC, FastMCP, MCP's SDK, taskiq and TrustGraph; needs Go and redis-server
# make faults  play the same faults on all of them; one case: make faults ONLY=killed-instance/dispatch
# make bench-cluster  measure calls while brokers of a cluster fail, and write docs/explanation/cluster.md: 10 minutes
# make bench-scale  measure a call's cost and the memory from one to many tools, instances, users, dispatchers and calls in flight
# make bench-search  measure tool search on MetaTool's queries; select the data with: make bench-search DATA=FOLDER
# make adapters  test the adapters of agent frameworks, each in an environment of its own; select with ADAPTERS='langchain'
# make bench-learning  evaluate learned scores of a toolkit: recall@3 of the next tool; no broker, a minute
# make dashboards  write the dashboards' JSON and draw their pictures from live runs; needs prometheus
# make soak   keep dispatch under load and faults for an hour: lost calls, calls executed twice, memory; to try it: ARGS="--minutes 2"
# make simulate  simulate failing services in virtual time: without guards, with naive guards, with dispatch; no broker
# make mutation  run mutation tests of breaker, budget, limiter, correlation and sessions; select with ARGS='dispatch.resilience.retry*'
# make coverage  measure branch coverage of the pure cores of resilience; must be 100 %
# make docs   write the tables of the reference pages from the code, build the site in site/; a broken link or reference fails
# make docs-serve  serve the site at http://127.0.0.1:8000, rebuilt on every change
# make lint   run ruff, mypy, import-linter (layers, cycles) and the linters of the deployment kit
# make tools  fetch or build the linters of the deployment kit; needs Go
# make release  build the wheel twice (they must be equal), the source archive, the SBOM and the checksums, in dist/
# make figures  count files, code lines and imports of dispatch, and walk one call
# make clean  delete everything that was built here

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
## Test processes: they often wait for brokers and services, so 4 keep two cores busy; 3 under the load of the long tests.
JOBS ?= 4
## TrustGraph's services, for the tests: without their 30 dependencies, of which the tests need none.
TRUSTGRAPH := $(shell sed -n 's/.*trustgraph-base==\([0-9.]*\).*/\1/p' pyproject.toml)
HELM := v3.22.0
## Versions of Pulsar for test-versions: 3.0 LTS, the last one before 4.0, the newest distribution in Maven, and the newest 4.x.
VERSIONS ?= 3.0.16 3.3.6 4.0.8 4.2.4
ADAPTERS ?= $(basename $(notdir $(wildcard tests/adapters/requirements/*.txt)))
SOURCES := pyproject.toml dispatch/__init__.py

## The tests start hundreds of Python processes: without bytecode files each compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: soak release tools adapters dev figures help setup demo test test-fast test-long lint bench bench-learning bench-peers bench-search faults simulate dashboards mutation coverage clean docs docs-serve test-cluster test-versions bench-cluster bench-scale

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
	@$(PIP) install -e '.[cli,yaml,watch,otel,functions,mcp,toolkit,http]' pytest
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: $(BIN)/python $(SOURCES)
	@echo "Setting up ($(VENV)), with everything for the tests …"
	@$(PIP) install -e '.[dev]'
	@$(PIP) install --no-deps trustgraph-flow==$(TRUSTGRAPH)
	@touch $@ $(VENV)/.demo $(VENV)/.setup

$(VENV)/.peers: $(VENV)/.dev
	@echo "Setting up ($(VENV)), with the systems and libraries that dispatch is compared with …"
	@$(PIP) install -e '.[peers]'
	@touch $@

$(VENV)/proxies/.made: $(BIN)/python pyproject.toml
	@echo "Setting up ($(VENV)/proxies), with proxies of MCP whose dependencies do not go together with the others' …"
	@$(BIN)/python -m venv $(VENV)/proxies
	@$(VENV)/proxies/bin/python -m pip install --quiet --disable-pip-version-check -e '.[proxies]'
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

## Two processes fill two cores: these tests seldom wait, and each more collects all of them again.
test-fast: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not process and not slow and not costly and not long' --ignore tests/benchmarks --ignore tests/adapters --ignore tests/integration \
	  --hypothesis-profile=fast $(ARGS)

test-long: JOBS = 3
test-long: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --long-profile $(ARGS)
	@$(BIN)/python -m pytest --long-profile -m alone $(ARGS)

test-cluster: $(VENV)/.dev
	@$(BIN)/python -m pytest --long-profile tests/integration/pulsar/test_cluster.py $(ARGS)

test-versions: $(VENV)/.dev
	@set -e; for each in $(VERSIONS); do \
	  echo "Pulsar $$each"; \
	  export DISPATCH_PULSAR_VERSION=$$each; \
	  $(BIN)/python -m tests.helpers.pulsar_distribution; \
	  $(BIN)/python -m pytest tests/integration/pulsar $(ARGS); \
	done

## Linters of the deployment kit, and a collector of traces for the tests; those that Debian lacks are built with Go.
$(VENV)/tools/.ready: deploy/requirements.txt tests/helpers/otel_collector/go.mod | $(VENV)/.dev
	@echo "Setting up ($(VENV)/tools) …"
	@test -x $(VENV)/tools/python/bin/python || $(BIN)/python -m venv $(VENV)/tools/python
	@$(VENV)/tools/python/bin/python -m pip --disable-pip-version-check --quiet install -r deploy/requirements.txt
	@if command -v go >/dev/null; then \
	  GOBIN=$(CURDIR)/$(VENV)/tools GOFLAGS=-buildvcs=false go install helm.sh/helm/v3/cmd/helm@$(HELM) && \
	  cd tests/helpers/otel_collector && go build -buildvcs=false -o $(CURDIR)/$(VENV)/tools/otel-collector . && \
	  touch $(CURDIR)/$@ ; \
	else echo "helm and the collector are not built: apt-get install golang-go"; fi

tools: $(VENV)/tools/.ready

lint: $(VENV)/.dev $(VENV)/tools/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --verbose >/dev/null || $(BIN)/lint-imports --no-cache
	@$(BIN)/python -m deploy.check

## The second build must be equal, byte for byte; the SBOM lists what the wheel installs with the extra `all`.
release: $(VENV)/tools/.ready
	@rm -rf dist build/again build/sbom
	@$(VENV)/tools/python/bin/python -m build --outdir dist . >/dev/null
	@$(VENV)/tools/python/bin/python -m build --wheel --outdir build/again . >/dev/null
	@cmp dist/*.whl build/again/*.whl
	@$(BIN)/python -m venv build/sbom
	@build/sbom/bin/python -m pip --disable-pip-version-check --quiet install "$$(echo dist/*.whl)[all]"
	@$(VENV)/tools/python/bin/cyclonedx-py environment --output-reproducible -o dist/sbom.cdx.json build/sbom/bin/python
	@cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

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

bench-peers: $(VENV)/.dev $(VENV)/.peers
	@$(BIN)/python -m benchmarks.peers $(ARGS)

faults: $(VENV)/.dev $(VENV)/.peers $(VENV)/proxies/.made
	@$(BIN)/python -m benchmarks.faults $(addprefix --only ,$(ONLY)) $(ARGS)

bench-cluster: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.cluster $(ARGS)

bench-scale: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.scale $(ARGS)

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

soak: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.soak $(ARGS)

simulate: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.simulation $(ARGS)

## Restarts each time: earlier verdicts ignore changes of the tests.
mutation: $(VENV)/.mutation
	@rm -rf mutants
	@$(BIN)/mutmut run $(ARGS)
	@$(BIN)/python -m tests.helpers.mutation_report $(ARGS)

coverage: $(VENV)/.dev
	@$(BIN)/python -m coverage run --branch --source=dispatch/resilience -m pytest -q tests/unit/resilience tests/model
	@$(BIN)/python -m coverage report --skip-covered --show-missing --fail-under=100

clean:
	rm -rf $(VENV) $(VENV)-adapters $(VENV)-mcp .pytest_cache .coverage .mypy_cache .ruff_cache .hypothesis build dist site *.egg-info benchmarks/results mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
