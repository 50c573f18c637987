# joulefeed: `make run` and `make test` do all the set-up a fresh Debian or Ubuntu machine needs.

PYTHON := .venv/bin/python
RESOLVE = $(if $(wildcard .venv-uv/bin/uv),.venv-uv/bin/)uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header
EXPERIMENT ?= wan30ms
ARGS ?=
TESTS ?= tests
# tests/conftest.py says how many, and the order; tests wait for each other where their marker says so. The tests of a
# file share what they run, so they have one worker.
WORKERS := -n logical --dist loadfile --no-loadscope-reorder

.PHONY: help docs run test test-fast test-slow test-vm gpu-smoke lint lint-python lint-playbooks lint-workflows server minio tensorflow mosaic cassandra ansible slurm setup bench lock clean

help:              ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

run: setup         ## set up, then run +experiment=$(EXPERIMENT); EXPERIMENT=smoke ARGS="repeats=5" change it
	playbooks/privileged.sh $(PYTHON) -m harness +experiment=$(EXPERIMENT) $(ARGS)

test: setup lint server minio tensorflow mosaic cassandra ansible ## set up, then lint and test everything once; TESTS=tests/loaders for some
	PYTHONDONTWRITEBYTECODE= playbooks/privileged.sh $(PYTHON) -m pytest $(WORKERS) $(TESTS) $(ARGS)

test-slow: setup server minio tensorflow mosaic cassandra ansible slurm ## set up, then what takes long: faults by the hundred, leaks, second environments
	PYTHONDONTWRITEBYTECODE= playbooks/privileged.sh $(PYTHON) -m pytest -m slow $(WORKERS) $(TESTS) $(ARGS)

test-fast: setup   ## set up, then the tests that start no process; TESTS and ARGS as for test
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest --fast $(WORKERS) $(TESTS) $(ARGS)

test-vm: setup ansible ## several hosts as virtual machines: systemd, netem, NFS, chrony; a quarter of an hour
	playbooks/vm.sh
	playbooks/privileged.sh $(PYTHON) -m pytest -m vm --timeout 900 tests/hosts $(ARGS)

gpu-smoke: setup   ## a short check of all that needs an NVIDIA GPU; refuses to run without one
	playbooks/gpu_smoke.sh

lint: setup        ## ruff, mypy (strict), the words, errors and arguments of docstrings, and workflow files
	$(MAKE) --no-print-directory -j2 --output-sync=target lint-python lint-playbooks lint-workflows

lint-python:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) tests/prose.py

lint-playbooks:
	[ ! -x .venv-ansible/bin/ansible-lint ] || playbooks/lint.sh

lint-workflows:
	playbooks/actionlint.sh

server:            ## the InfluxDB server that tests run against: found, or built in a few minutes
	playbooks/influxdb.sh >/dev/null

minio:             ## the object store that tests run against: MinIO, found, or built in a few minutes
	playbooks/minio.sh >/dev/null

tensorflow: setup  ## the environment of tf.data service: found, or made in a minute
	playbooks/tensorflow.sh >/dev/null

mosaic: setup      ## the environment with MosaicML Streaming: found, or made in a minute
	playbooks/mosaic.sh >/dev/null

cassandra:         ## the Cassandra server that tests run against: found, or its jars copied with Maven in seconds
	playbooks/cassandra.sh >/dev/null

slurm:             ## the SLURM whose jobs tests run: found, or installed with apt in seconds
	playbooks/slurm.sh

ansible: setup     ## the environment with Ansible that several hosts need: made in .venv-ansible in a minute
	playbooks/ansible.sh

setup: .venv/.ready ## system packages, uv, and the locked environment in .venv

.venv/.ready: requirements.lock pyproject.toml playbooks/setup.sh
	playbooks/setup.sh

bench: setup server mosaic ansible ## the benchmarks, and the tables of the docs; QUICK=1 for the short form, ARGS="--only link"
	playbooks/privileged.sh $(PYTHON) benchmarks/run_all.py $(if $(QUICK),--quick) $(ARGS)

docs: setup        ## the site in .site/index.html; a warning is an error
	$(PYTHON) -m sphinx -W --keep-going -q docs .site

lock:              ## resolve pyproject.toml again into requirements.lock
	$(RESOLVE) --python-version 3.11 --extra dev pyproject.toml --output-file requirements.lock
	$(RESOLVE) --python-version 3.11 playbooks/ansible.in --output-file playbooks/ansible.lock
	cp requirements.lock playbooks/mosaic.lock  # versions to prefer, so that files are shared
	$(RESOLVE) --python-version 3.11 --extra all pyproject.toml playbooks/mosaic.in --output-file playbooks/mosaic.lock
	cp requirements.lock playbooks/tensorflow.lock
	$(RESOLVE) --python-version 3.11 --extra all pyproject.toml playbooks/tensorflow.in --output-file playbooks/tensorflow.lock
	cp requirements.lock playbooks/freethreaded.lock
	$(RESOLVE) --python-version 3.14 pyproject.toml playbooks/freethreaded.in --output-file playbooks/freethreaded.lock

clean:             ## remove the environment and what a dead run left; results stay
	-playbooks/privileged.sh $(PYTHON) -m harness.testbed clean
	rm -rf .venv .venv-ansible
