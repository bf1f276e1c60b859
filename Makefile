# On a machine with Python 3.10+ and make, two commands set everything up:  make demo · make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/python -m uv pip install -q --python $(BIN)/python
SOURCES := $(shell find hybridmem langchain_hybridmem llamaindex_hybridmem -name '*.py' 2>/dev/null) pyproject.toml README.md
PROGRAMS := chromium chromium-driver fish zsh
BENCHMARKS := fusion lexical vectors graph memory store tune agents engines postgres postgres_words
RIGOUR := tests/fusion tests/core/test_fanout.py

unexport PYTHONDONTWRITEBYTECODE  # keep compiled bytecode: later imports are faster

.PHONY: demo test coverage soak lint types bench quality docs pictures release-check programs clean help

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo  ## set up, install, and show ranked, explained results, offline
	$(BIN)/python examples/quickstart.py

test: programs $(VENV)/.test $(VENV)/.wheel  ## set up, install the built wheel and run the whole suite
	$(BIN)/pytest -n 2 --dist loadgroup -q

coverage: programs $(VENV)/.test $(VENV)/.wheel  ## every line and branch of the fusion and of the fan-out
	$(BIN)/pytest -q $(RIGOUR) --cov=hybridmem.fusion --cov=hybridmem.core.fanout --cov-branch --cov-report=term-missing --cov-fail-under=100

soak: $(VENV)/.test $(VENV)/.wheel  ## kill, damage and random-history tests at full length (about an hour)
	HYBRIDMEM_KILLS=200 HYBRIDMEM_DAMAGED=400 HYBRIDMEM_EXAMPLES=400 HYBRIDMEM_OPERATIONS=10000 HYBRIDMEM_SOAK_SECONDS=300 \
	  $(BIN)/pytest -q --timeout 3600 tests/stores tests/memory/test_memory_processes.py

lint: $(VENV)/.lint $(VENV)/.wheel  ## ruff (style and format) and import-linter (layers)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.lint $(VENV)/.test $(VENV)/.wheel  ## mypy --strict over the packages, tests/support and examples
	$(BIN)/mypy

bench: $(VENV)/.test $(VENV)/.wheel  ## measure against the peers and write docs/benchmarks (an hour; the machine must be quiet)
	$(UV) --group engines
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --write || exit 1; done

quality: $(VENV)/.test $(VENV)/.wheel  ## rank the evaluation sets, write docs/quality.md and README's table (DATA=folder)
	$(BIN)/python -m benchmarks.quality --write $(if $(DATA),--data $(DATA))

docs: $(VENV)/.docs  ## build the docs site into build/site, offline and without warnings
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q
	@echo "build/site/index.html; with the search field: python3 -m http.server -d build/site"

release-check: $(VENV)/.test  ## build sdist and wheel, check metadata, install in clean environments, run the examples
	$(BIN)/python .ci/release_check.py

pictures: $(VENV)/.test $(VENV)/.wheel programs  ## make the pictures of the docs (LOCOMO=folder of one conversation)
	$(BIN)/python -m tests.support.pictures docs $(LOCOMO)

programs:  # the inspector is tested in a real Chromium, completion in real shells
	@for program in chromedriver fish zsh; do command -v $$program >/dev/null || missing=1; done; \
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing=1; \
	[ -z "$$missing" ] || echo "beyond PyPI this installs Chromium, chromedriver, fish and zsh with apt-get, when run as root; otherwise nothing"; \
	[ -z "$$missing" ] \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -q >/dev/null \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(PROGRAMS) >/dev/null; } \
	  || echo "they cannot be installed here: the browser tests fail and the tests of missing shells are left out"

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), f"Python 3.10+ is needed, this is {sys.version}"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check uv

$(VENV)/.demo: $(BIN)/python $(SOURCES)
	$(UV) --reinstall-package hybridmem '.[local]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(UV) '.[all]' --group test
	@touch $@

$(VENV)/.wheel: $(BIN)/python $(SOURCES) | $(VENV)/.test
	rm -rf dist && $(BIN)/python -m uv build -q --wheel --out-dir dist .
	$(UV) --reinstall-package hybridmem --no-deps dist/hybridmem-*.whl
	@cd / && $(abspath $(BIN))/python -c 'import hybridmem as h; assert "site-packages" in h.__file__, h.__file__'
	@touch $@

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(UV) --group docs
	@touch $@

$(VENV)/.lint: $(BIN)/python pyproject.toml
	$(UV) --group lint
	@touch $@

clean:  ## remove what was built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
