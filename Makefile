# Each target sets up what it needs; see .ci/env for which Python it takes.
.PHONY: check test lint

check:
	@.ci/env python -m packproof check

test:
	@.ci/env python -m pytest -n auto

lint:
	@.ci/env ruff check .
	@.ci/env ruff format --check .
	@.ci/env python -m mypy -p packproof
	@.ci/env typos
