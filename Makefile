# Two commands matter: `make run` starts a broker, `make test` runs the tests.
# Both go through `make setup`, which does nothing when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK_STAMP := $(VENV)/.installed-spark
BROWSER_STAMP := $(VENV)/.installed-browser
DOCS_STAMP := $(VENV)/.installed-docs
SPARK_TESTS := $(addprefix tests/spark/,test_on_spark.py test_spark_crashes.py test_spark_packaging.py)

.PHONY: bench-metrics run demo test test-browser browser setup setup-spark setup-browser setup-docs lint fuzz soak soak-transactions bench bench-rebalance bench-branches bench-cooperative bench-transactions bench-spark bench-console compat-java compat-answers compat-kcat compat-go compat-javascript compat-streams compat-connect compat-spark crash-spark test-spark-packaging docs docs-serve lock clean help

help:            ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP)  ## create .venv with everything the broker and its tests need

$(STAMP): requirements.lock pyproject.toml $(wildcard src/anabranch/branch/*.c src/anabranch/branch/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Anabranch needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

# Spark is half a gigabyte, which a broker does not need.
setup-spark: $(SPARK_STAMP) ## the same with PySpark, for the demo and the tests

$(SPARK_STAMP): $(STAMP) requirements-spark.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-spark.lock
	@touch $(SPARK_STAMP)

# What drives the browser is in requirements-browser.lock; the browser itself is Debian's Chromium.
setup-browser: $(BROWSER_STAMP) ## the same with Playwright, which drives a browser

$(BROWSER_STAMP): $(STAMP) requirements-browser.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-browser.lock
	@touch $(BROWSER_STAMP)

setup-docs: $(DOCS_STAMP) ## the same with what makes the documentation's site

$(DOCS_STAMP): $(STAMP) requirements-docs.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $(DOCS_STAMP)

run: setup       ## start a broker on localhost:9092 with its data in ./anabranch-data
	@$(BIN)/anabranch serve

demo: setup-spark    ## a broker, orders and a pipeline over them (needs Java 17)
	@$(BIN)/anabranch demo

lint: setup-spark ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup-spark lint ## lint and run the tests
	$(BIN)/pytest -n auto --dist loadfile --ignore=tests/browser $(addprefix --ignore=,$(SPARK_TESTS))
	@echo "and those on Spark, which wants all cores:"
	$(BIN)/pytest tests/spark/test_on_spark.py --durations 5
	$(BIN)/pytest $(wordlist 2,3,$(SPARK_TESTS)) -k "test_spark_submit or test_spark_connect or python_workers"

crash-spark: setup-spark ## driver, workers and broker killed under queries on Spark (needs Java 17)
	$(BIN)/pytest tests/spark/test_spark_crashes.py --durations 5

test-spark-packaging: setup-spark ## jobs by spark-submit, Spark Connect, on a cluster (needs Java 17)
	$(BIN)/pytest tests/spark/test_spark_packaging.py --durations 8

CHROMIUM = $(firstword $(shell command -v chromium chromium-browser google-chrome))
test-browser: setup-browser ## the console in a real browser (needs Chromium: `make browser`)
	@test -n "$(CHROMIUM)" || { echo "No chromium, chromium-browser or google-chrome is on PATH."; \
	  echo "As root \`make browser\` installs Debian's; else install one and try again."; exit 1; }
	$(BIN)/pytest tests/browser -s --durations 5
	@echo "Pictures of every page are in build/screenshots."

browser:         ## install Chromium where Debian's packages are and this is root
	@test -z "$(CHROMIUM)" || { echo "There is one: $(CHROMIUM)"; exit 0; }; \
	  if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; \
	  else echo "Install Chromium: \`sudo apt install chromium\`, or as your system does."; exit 1; fi

fuzz: setup      ## the fuzz tests, ten minutes instead of seconds
	ANABRANCH_FUZZ_SECONDS=600 $(BIN)/pytest tests/server -k fuzz --timeout 3600
	ANABRANCH_ENGINE_SECONDS=600 $(BIN)/pytest tests/coordinator/test_cooperative_engine_machine.py

MINUTES ?= 30
soak: setup      ## cooperative members and a broker that keep dying; MINUTES=10 is shorter
	ANABRANCH_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest tests/cooperative -k soak -s

ROUNDS ?= 50
soak-transactions: setup ## transactional clients and a broker that keep dying; MINUTES=10 ROUNDS=10 is shorter
	ANABRANCH_ROUNDS=$(ROUNDS) $(BIN)/pytest tests/transactions -k rounds -s
	ANABRANCH_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest tests/transactions -k crew -s

bench: setup     ## side by side with Apache Kafka (needs gcc, Java 17 and Maven)
	$(BIN)/python bench/broker.py

bench-rebalance: setup ## rebalance times side by side with Apache Kafka
	$(BIN)/python bench/rebalance.py

bench-branches: setup ## branch topics: cost of filtered fetches, a group at work (needs gcc)
	$(BIN)/python bench/branches.py

bench-cooperative: setup ## many workers on one partition, beside Apache Kafka and Parallel Consumer
	$(BIN)/python bench/cooperative.py

bench-console: setup ## the console with 1,000 groups and 10,000 partitions: pages, and what watching costs
	$(BIN)/python bench/console.py

bench-metrics: setup ## what a scrape costs, and what counting costs a request
	cd bench && ../$(BIN)/python metrics_scrape.py

bench-transactions: setup ## transactional produce of the Java client, beside Apache Kafka
	$(BIN)/python bench/transactions.py

bench-spark: setup-spark ## format("anabranch") beside Spark's own connector (needs Java 17 and Maven)
	$(BIN)/python bench/spark.py

compat-java: setup ## the Java client and Kafka's own tools against us (needs Java 17 and Maven)
	$(BIN)/python compat/java/run.py

compat-answers: setup ## the same requests to Apache Kafka and to us, answers compared
	$(BIN)/python compat/answers/replay_transactions.py
	$(BIN)/python compat/answers/run.py

compat-kcat: setup ## kcat against us
	$(BIN)/python compat/kcat/run.py

compat-go: setup ## franz-go's groups, KIP-848 and classic, against us (needs Go 1.26)
	$(BIN)/python compat/franz_go/run.py

compat-javascript: setup ## kafkajs and @platformatic/kafka, groups, transactions and branch topics, against us (needs Node 20 and npm)
	$(BIN)/python compat/javascript/run.py

compat-streams: setup ## Kafka Streams with exactly_once_v2, killed and restarted, against us (needs Java 17 and Maven)
	$(BIN)/python compat/streams/run.py

compat-connect: setup ## Kafka Connect's workers and file connectors, also on a branch topic, against us (needs Java 17 and Maven)
	$(BIN)/python compat/connect/run.py

compat-spark: setup-spark ## Spark's own connector for Kafka against us (needs pyspark, Java 17 and Maven)
	$(BIN)/python compat/spark/run.py

docs: setup-docs ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: setup-docs ## the same while you write, on localhost:8000
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

lock: setup      ## pin the newest versions of all dependencies again
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --group dev --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-header --universal --python-version 3.11 --upgrade -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra spark --group dev --group spark --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-header --universal --python-version 3.11 --upgrade \
	  --constraints requirements.lock -o requirements-spark.lock
	$(BIN)/uv pip compile --group pyproject.toml:browser --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-header --universal --python-version 3.11 --upgrade \
	  --constraints requirements.lock -o requirements-browser.lock
	$(BIN)/uv pip compile --group pyproject.toml:docs --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-header --universal --python-version 3.11 --upgrade \
	  --constraints requirements.lock -o requirements-docs.lock

clean:           ## remove what setup and the tests made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
