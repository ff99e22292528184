# Everything runs in .venv, which each target makes when it is missing. PYTHON picks the interpreter for it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help serve test check lint types faults oracle recordings demo-model clean

help:
	@echo "make serve       set up, and serve the embedded demo model on http://127.0.0.1:8080 (ARGS=\"--port 9000\")"
	@echo "make test        set up, and run the tests (ARGS=\"-k name\")"
	@echo "make check       lint, types and tests: what CI runs"
	@echo "make faults      plant faults into a copy and see the conformance suite notice each (about ten minutes)"
	@echo "make oracle      the tests that need a real llama-server, from the oracle extra"
	@echo "make recordings  record the real llama-server again into conformance/recordings"
	@echo "make demo-model  train the demo model again (about an hour and a half)"
	@echo "make clean       remove the environment and every cache"

# One stamp an extra, so that serving installs no test tools.
$(VENV)/ready-%: pyproject.toml
	@start=$$(date +%s); \
	if [ ! -x $(BIN)/python ]; then echo "setup: making an environment in $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); fi; \
	case "$*" in serve) extra="";; *) extra="[$*]";; esac; \
	echo "setup: installing bloomery$$extra"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".$$extra" && touch $@ && \
	echo "setup: done in $$(($$(date +%s) - start)) s"

serve: $(VENV)/ready-serve
	@echo "serve: the demo model; Ctrl-C stops it"
	@exec $(BIN)/bloomery-serve --model demo $(ARGS)

test: $(VENV)/ready-test
	@start=$$(date +%s); echo "test: running"; \
	$(BIN)/python -m pytest -q -n auto $(ARGS) && echo "test: done in $$(($$(date +%s) - start)) s"

lint: $(VENV)/ready-check
	@echo "lint: ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/ready-check $(VENV)/ready-test
	@echo "types: mypy"; mkdir -p $(VENV)/typed/bloomery; \
	for package in interface reference accelerated server conformance; do \
		ln -sfn "$(CURDIR)/$$package" $(VENV)/typed/bloomery/$$package; done; \
	MYPYPATH=$(VENV)/typed $(BIN)/mypy -p bloomery.interface -p bloomery.reference -p bloomery.accelerated \
		-p bloomery.server -p bloomery.conformance

check: lint types test

faults: $(VENV)/ready-test
	@$(BIN)/python -m tools.planted_faults $(ARGS)

oracle: $(VENV)/ready-oracle $(VENV)/ready-test
	@$(BIN)/python -m pytest -q -m oracle $(ARGS)

recordings: $(VENV)/ready-oracle
	@$(BIN)/bloomery-conformance record --oracle --out conformance/recordings $(ARGS)

demo-model: $(VENV)/ready-train $(VENV)/ready-oracle
	@$(BIN)/python -m tools.demo_model $(ARGS)

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
