# Everything here runs from the checkout: tools go into .venv and .local/tools, data into .local.
# Python 3.11 or newer is the only thing that must be there beforehand.

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules

python := .venv/bin/python
local = $(python) -m localstack
# 141: nobody reads on, as behind `head`.
unread = || { code=$$?; [ $$code -eq 141 ] || exit $$code; }

# Whoever names no database means that of the local stack; exit code 3: it could not be asked.
find_database = given=$$DATABASE_URL; [ -n "$$given" ] || [ ! -f .local/env ] || . .local/env;
tell_of_stack = || { code=$$?; [ $$code -ne 141 ] || exit 0; [ $$code -ne 3 ] || [ -n "$$given" ] || \
	echo 'This is about the local stack: `make status` says whether it runs, `make up` starts it.' >&2; \
	exit $$code; }

# A misspelt option would be passed over.
options := MODE CONSUMERS DISPATCHERS PORT DETACH PYTHON Q JOB INPUT ID MINUTES UPGRADE
handed_on := DATABASE_URL CONSUMER_MODE PYTHONPATH HAULAGE_% OTEL_% AWS_% PG%
nearest = $(filter $(name)%,$(options))
$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),\
	$(if $(filter $(options) $(handed_on),$(name)),,\
	$(error $(name) is no option$(if $(nearest),; the nearest is $(nearest)). There are: $(options)))))

# Handed on only when given, so that `PORT=9000 make up` and `make up PORT=9000` are the same.
up_options = $(if $(MODE),--mode $(MODE)) $(if $(CONSUMERS),--consumers $(CONSUMERS)) \
	$(if $(DISPATCHERS),--dispatchers $(DISPATCHERS)) $(if $(PORT),--port $(PORT))

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  Options of demo and up: MODE=sqs-consumer|outbox CONSUMERS=n DISPATCHERS=n PORT=n"
	@echo "  Option of up: DETACH=1 returns when all is ready. The interpreter: PYTHON=path"

.PHONY: demo up down reset status logs psql sql
demo: .venv/complete ## Start everything, run two jobs through it, show them, stop
	@$(local) demo $(up_options)

up: .venv/complete ## Start the whole stack and stay with it until Ctrl-C (DETACH=1: return)
	@$(local) up $(up_options) $(if $(filter-out 0,$(DETACH)),--detach)

down: .venv/complete ## Stop the stack; its database stays, files and messages in LocalStack do not
	@$(local) down

reset: .venv/complete ## Stop the stack and remove its data; installed tools stay
	@$(local) reset

status: .venv/complete ## Say what runs, where, and since when
	@$(local) status $(unread)

logs: .venv/complete ## Follow the logs of every process
	@$(local) logs

psql: .venv/complete ## Open a console on the database, started for it if need be
	@$(local) psql

sql: .venv/complete ## Run one statement: make sql Q="select 1"
	@[ -n "$$Q" ] || { echo 'Say what to run: make sql Q="select 1"' >&2; exit 2; }
	@$(local) sql "$$Q" $(unread)
# The override keeps dollar signs as they were typed; they are SQL here, not make.
sql: override export Q := $(value Q)

.PHONY: doctor
doctor: .venv/complete ## Prove the invariants on DATABASE_URL, or the local stack that is up (JOB=key: one job)
	@$(find_database) $(python) -m dispatcher.doctor $(if $(JOB),--job $(JOB)) $(tell_of_stack)

.PHONY: story
story: .venv/complete ## Tell what happened, there or in the local stack (JOB=key, INPUT=n: one input of it; or ID=correlation id)
	@[ -n "$$JOB$$ID" ] || { echo 'Say of what: make story JOB=key, or ID=correlation id' >&2; exit 2; }
	@$(find_database) $(python) -m api.story $(if $(INPUT),--input $(INPUT)) -- "$${JOB:-$$ID}" $(tell_of_stack)

.PHONY: test check lint mypy pyright fmt bench bench-grown soak
# One more than there are cores: many tests wait.
workers = $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))
test: .venv/complete ## Run every test, five processes at most
	$(python) -m pytest --numprocesses $(workers) --maxprocesses 5 --dist worksteal

check: lint mypy pyright ## Lint, format, types and import directions, as CI does

lint: .venv/complete
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	.venv/bin/lint-imports

mypy: .venv/complete
	$(python) -m mypy --strict .

pyright: .venv/complete
	$(python) -m basedpyright

fmt: .venv/complete ## Format, and fix what can be fixed safely
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

bench: .venv/complete ## Measure throughput, latency and what idling costs; writes docs/benchmarks.*
	$(python) -m tests.benchmarks

bench-grown: .venv/complete ## Measure with 10,000,000 finished inputs; writes docs/benchmarks-grown.*
	$(python) -m tests.benchmarks.grown

soak: .venv/complete ## Watch memory under a steady load (MINUTES=30)
	$(python) -m tests.benchmarks.soak --minutes $(or $(MINUTES),30)

.PHONY: lock clean
compile = $(python) -m uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header

lock: .venv/complete ## Renew the lock files; versions move only with UPGRADE=1
	$(compile) $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.lock
	$(compile) $(if $(UPGRADE),--upgrade) --constraint requirements.lock --group dev pyproject.toml \
		-o requirements-dev.lock
	$(compile) $(if $(UPGRADE),--upgrade) localstack/requirements.in -o localstack/requirements.lock

clean: ## Remove what was installed and cached; the database of the stack stays
	rm -rf .venv .local/tools .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written when everything is installed, so a half-made environment is made again.
.venv/complete: requirements-dev.lock
	@python=$$(PYTHON="$(PYTHON)" localstack/find-python) && \
	"$$python" localstack/environment.py .venv requirements-dev.lock
