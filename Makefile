# Each target sets up what it needs; see .ci/env for which Python it takes.
.PHONY: check test lint words docs tree proof matrix

check:
	@.ci/env python -m packproof check --compiled data/compiled.json

test:
	@.ci/env python -m pytest -n auto --dist worksteal

lint: words
	@.ci/env ruff check .
	@.ci/env ruff format --check .
	@.ci/env python -m mypy -p packproof -p tests
	@.ci/env typos

words:
	@.ci/env python .ci/words.py
	@.ci/env python .ci/names.py

docs:
	@.ci/env python docs/properties.py
	@.ci/env python docs/options.py
	@.ci/env python -m sphinx -q -W -n -c docs . build/site
	@echo build/site/index.html

# for tools that do not follow links: the sources with real folders in place of the links of src/packproof
tree = build/tree
tree:
	@rm -rf $(tree) && mkdir -p $(dir $(tree)) && cp -RL src $(tree)
	@find $(tree) -name __pycache__ -prune -exec rm -r {} +
	@echo $(tree)

runs = .packproof/proof
proof:
	@mkdir -p $(runs)
	@.ci/env python -m packproof.proof.compiled data/compiled.json
	@.ci/env python -m pytest -q -n auto -m proof
	@.ci/env python -m packproof.proof.speed --compare data/speed.json
	@PACKPROOF_FUZZ=10000 .ci/env python -m pytest -q tests/harness/check/test_fuzz.py
	@.ci/env python -m packproof museum run --device cpu --json $(runs)/museum.json
	@.ci/env python -m packproof museum compare --json $(runs)/recipes.json
	@.ci/env python -m packproof museum alarms --json $(runs)/alarms.json
	@.ci/env python -m packproof.proof.smallest_errors $(runs)/errors.json
	@.ci/env python -m packproof museum rogues
	@.ci/env python -m packproof.proof.museum.kills 50
	@.ci/env python -m pytest -q -n auto tests/quality/seeds.py
	@.ci/env python -m packproof mutate --killers data/killers.json --resume $(runs)/mutants.jsonl --json $(runs)/mutants.json
	@.ci/env python -m packproof proof $(runs) docs/proof.md --json data/proof.json

matrix:
	@.ci/matrix
