"""Wrong command lines. Each ends with exit code 2 and one line that names the option, what came and the way out."""

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest

from packproof.adapters.peers.registry import PEERS
from packproof.base.names import SEED
from packproof.base.signatures import SIGNATURES
from packproof.cli import main
from packproof.museum import entries

ENTRY = """[[expected_failure]]
target = "packproof.refs:rope"
property = "packing"
dtype = "fp32"
reason = "known"
"""
FILES = {
    "mine.py": "from packproof.refs import rope as turned\n",
    "words.toml": "not toml",
    "deep.toml": f"expected_failure = {'[' * 3000}{']' * 3000}\n",
    "table.toml": ENTRY.replace("[[expected_failure]]", "[[expected]]"),
    "key.toml": ENTRY + 'faults = "raised"\n',
    "short.toml": ENTRY.replace('reason = "known"\n', ""),
    "blank.toml": ENTRY.replace("known", " "),
    "number.toml": ENTRY.replace('"fp32"', "32"),
    "property.toml": ENTRY.replace("packing", "packin"),
    "beyond.toml": ENTRY.replace("packing", "packing (NaN)"),
    "dtype.toml": ENTRY.replace("fp32", "f32"),
    "device.toml": ENTRY + 'device = "gpu"\n',
    "fault.toml": ENTRY + 'fault = "crash"\n',
    "twice.toml": ENTRY + ENTRY.replace("fp32", "float32") + 'device = "cpu"\n',
    "no_file.toml": ENTRY.replace("packproof.refs", "no.py"),
    "no_function.toml": ENTRY.replace("packproof.refs", "mine.py"),
    "no_module.toml": ENTRY.replace("packproof.refs", "packproof.reffs"),
    "broken.json": "[1,2",
    "deep.json": "[" * 30_000 + "]" * 30_000,
    "empty.json": "{}",
    "list.json": "[1]",
    "nothing.json": "",
    "other.json": json.dumps({"version": 9, "rows": []}),
    "lengths.txt": "3\nx\n",
    "minus.json": "[1, -2]",
    "none.txt": "\n",
}
FORM = "expected package.module:function, path/file.py:function or hub:owner/kernel:function"
LINES = {
    "": {
        "judge": "No such command 'judge'; there are: check, contract, grade, grades, peers, replay, explain, diff,",
        "checks m:f": "No such command 'checks'. Did you mean 'check'?",
        "--versions": "No such option: --versions",
    },
    "check": {
        "m:f --op rop": f"no op is called 'rop'; did you mean rope? there are {len(SIGNATURES)}, from",
        "m:f --op ''": f"no op is called ''; there are {len(SIGNATURES)}, from causal_conv1d to ",
        "m:f --device gpu": "no device is called 'gpu'; did you mean cuda? there are: cpu, cuda",
        "m:f --device ''": "no device is called ''; there are: cpu, cuda",
        "m:f --dtype fp23": "no dtype is called 'fp23'; did you mean fp32? there are: fp64, fp32, bf16, fp16",
        "m:f --dtype ''": "--dtype: '' names nothing; leave it out for the default",
        "m:f --property packin": "no property is called 'packin'; did you mean packing? there are: reference",
        "m:f --property ,": "--property: ',' names nothing; leave it out for the default",
        "m:f --profile fast": "no profile is called 'fast'; there are: quick, standard, thorough",
        "m:f --seed x": f"Invalid value for '--seed': 'x'; expected {SEED}; see `packproof check --help`",
        "m:f --seed=1.5": f"Invalid value for '--seed': '1.5'; expected {SEED}",
        "m:f --seed=-1": f"Invalid value for '--seed': '-1'; expected {SEED}",
        f"m:f --seed {2**32}": f"Invalid value for '--seed': '4294967296'; expected {SEED}",
        f"m:f --seed {'7' * 60}": f"Invalid value for '--seed': '{'7' * 60}'; expected {SEED}",
        f"m:f --seed {'7' * 5000}": f"Invalid value for '--seed': '{'7' * 80}'; expected {SEED}",
        "m:f --domain k=3": "domain: 'k=3' cannot be read",
        "m:f --domain 'length > 0, d == 8'": "stand apart by ';', not by ',': write 'length > 0; d == 8'",
        "m:f --domain 'd % 8'": "'d % 8' is a number, not a condition; write 'd % 8 == 0'",
        "m:f --max-time soon": "--max-time: 'soon' is no duration; expected one above zero, such as 60, 90s",
        "m:f --max-time 0": "--max-time: '0' is no duration",
        "m:f --max-time ''": "--max-time: '' is no duration",
        "m:f --timeout 0": "Invalid value for '--timeout': '0'; expected a number greater than or equal to 0.001",
        "m:f --timeout nan": "Invalid value for '--timeout': 'nan'; expected a number less than",
        "m:f --timeout inf": "Invalid value for '--timeout': 'inf'; expected a number less than or equal to 86400",
        "m:f --sanitizer memchek": "no sanitizer is called 'memchek'; did you mean memcheck? there are: memcheck",
        "m:f --sanitizer memcheck --device cpu": "--sanitizer: compute-sanitizer checks kernels on a GPU, not on cpu",
        "m:f --sanitizer memcheck --isolate": "--isolate: compute-sanitizer runs kernels outside of the walls, and",
        "m:f --expected-failures no.toml": "expected failures: no.toml: No such file or directory",
        "m:f --expected-failures folder": "expected failures: folder: is not a regular file",
        "m:f --expected-failures deep.toml": "expected failures: deep.toml is not TOML: maximum recursion depth",
        "m:f --expected-failures words.toml": "expected failures: words.toml is not TOML: Expected '=' after a key",
        "m:f --expected-failures table.toml": "table.toml has expected; expected only [[expected_failure]] with target",
        "m:f --expected-failures key.toml": "key.toml, entry 1: 'faults' is not a key; did you mean fault? there are",
        "m:f --expected-failures short.toml": "short.toml, entry 1: it has no reason; expected [[expected_failure]]",
        "m:f --expected-failures blank.toml": "blank.toml, entry 1: reason is ' '; expected text in quotes",
        "m:f --expected-failures number.toml": "number.toml, entry 1: dtype is 32; expected text in quotes",
        "m:f --expected-failures property.toml": "entry 1: no property is called 'packin'; did you mean packing?",
        "m:f --expected-failures beyond.toml": "entry 1: no property is called 'packing (NaN)'; did you mean packing (",
        "m:f --expected-failures dtype.toml": "dtype.toml, entry 1: no dtype is called 'f32'; did you mean fp32?",
        "m:f --expected-failures device.toml": "device.toml, entry 1: no device is called 'gpu'; did you mean cuda?",
        "m:f --expected-failures fault.toml": "fault.toml, entry 1: no fault is called 'crash'; did you mean crashed?",
        "m:f --expected-failures twice.toml": "twice.toml: entries 1 and 2 are both of packproof.refs:rope packing",
        "m:f --expected-failures no_file.toml": "entry 1: target 'no.py:rope': there is no file no.py",
        "m:f --expected-failures no_function.toml": "entry 1: target 'mine.py:rope': mine.py defines no rope",
        "m:f --expected-failures no_module.toml": "entry 1: target 'packproof.reffs:rope': there is no module",
        "m:f --opp rope": "No such option: --opp (Possible options: --op); see `packproof check --help`",
        "m:f more": "Got unexpected extra argument(s) (more); see `packproof check --help`",
        "m:f --json": "Option '--json' requires an argument",
        "m:f --device cpu --op rope --json no/r.json": "--json: the folder no of no/r.json does not exist; create it",
        "m:f --device cpu --op rope --json folder": "--json: folder is a folder; expected the name of a file",
        "m:f --device cpu --op rope --json ''": "--json:  is a folder; expected the name of a file",
        "m:f --device cpu --op rope --json r --html ./r": "--json and --html: both are ./r; expected a file for each",
        "m:f --device cpu --op rope --junit no/r.xml": "--junit: the folder no of no/r.xml does not exist",
        "m:f --device cpu --op rope --html no/r.html": "--html: the folder no of no/r.html does not exist",
        "'' --device cpu": f"target ''; {FORM}",
        "m --device cpu": f"target 'm'; {FORM}",
        ":f --device cpu": f"target ':f'; {FORM}",
        "no.py:f --device cpu": "target 'no.py:f': there is no file no.py",
        "mamba_ssm:ssd --device cpu": "mamba_ssm:ssd: module mamba_ssm is not installed; pip install mamba-ssm",
    },
    "peers": {
        "mamba": f"no peer is called 'mamba'; there are {len(PEERS)}, from mamba_ssm:ssd to torch:",
        "--op rop": "no op is called 'rop'; did you mean rope?",
        "--profile fast": "no profile is called 'fast'",
        "--from deep.json --markdown p.md": "--from: deep.json: damaged, not JSON (maximum recursion depth",
        "--seed -1": f"Invalid value for '--seed': '-1'; expected {SEED}",
        "--dtype ''": "--dtype: '' names nothing",
        "mamba_ssm:ssd --op rope --device cpu": "--op: mamba_ssm:ssd computes ssd, not rope",
    },
    "replay": {
        "": "Missing argument 'file'; see `packproof replay --help`",
        "no.json": "no.json: No such file or directory",
        "folder": "folder: is not a regular file",
        "broken.json": "broken.json: damaged, not JSON",
        "nothing.json": "nothing.json: damaged, not JSON",
        "empty.json": "empty.json: not a replay file of version 1",
        "other.json": "other.json: a replay file of version 9, and this packproof reads 1; use packproof",
        "list.json": "list.json: not a replay file of version 1",
    },
    "table": {
        "": "Missing argument 'file'; see `packproof table --help`",
        "list.json --plot x.svg": "--plot: list.json is not of `packproof bench stack` or `bench ranks`; `pack",
        "no.json": "no.json: No such file or directory",
        "folder": "folder is a folder; expected a file that `packproof bench --json` wrote",
        "broken.json": "broken.json: damaged, not JSON",
        "empty.json": "empty.json was not written by `packproof bench --json` in version 1",
        "other.json": "other.json was not written by `packproof bench --json` in version 1",
    },
    "list": {
        "everything": "Got unexpected extra argument(s) (everything); see `packproof list --help`",
        "--all": "No such option: --all; see `packproof list --help`",
    },
    "bench": {
        "--op rop": "no op is called 'rop'; did you mean rope?",
        "--device gpu": "no device is called 'gpu'; did you mean cuda?",
        "--device ''": "no device is called ''; there are: cpu, cuda",
        "--dtype fp23": "no dtype is called 'fp23'",
        "--dtype ''": "--dtype: '' names nothing; leave it out for the default",
        "--dtype fp32,bf16": "--dtype: 'fp32,bf16' names 2 dtypes; a bench has one, so run one for each",
        "--layout L9": "no layout is called 'L9'; there are: L1, L2, L3, L4",
        "--layout ''": "--layout: '' names nothing; leave it out for the default",
        "--layout L1 --lengths 3,4": "--lengths: cannot be given together with --layout; choose one of",
        "--lengths 3,x": "--lengths: 'x' in '3,x'; expected counts of tokens separated by commas, such as 5,0,7",
        "--lengths ''": "--lengths: '' in ''; expected counts of tokens",
        "--lengths -3": "--lengths: '-3' in '-3'; expected counts of tokens",
        "--lengths 0,0 --device cpu": "layout lengths: it has no tokens, so there is nothing to time",
        "--lengths 2147483648 --device cpu": "layout lengths: 2147483648 tokens; int32 cu_seqlens end at 2147483647",
        "--lengths 3 --tokens 5": "--tokens: the lengths of --lengths say how many tokens there are",
        "--lengths-file lengths.txt": "--lengths-file: lengths.txt, line 2: 'x'; expected a count of tokens",
        "--lengths-file minus.json": "--lengths-file: minus.json, item 1: -2; expected a count of tokens",
        "--lengths-file none.txt": "--lengths-file: none.txt holds no lengths; expected one count of tokens per line",
        "--lengths-file folder": "--lengths-file: folder: Is a directory",
        "--lengths-file no.txt": "--lengths-file: no.txt: No such file or directory",
        "--lengths-file deep.json": "--lengths-file: deep.json: brackets within brackets; expected one list of counts",
        "--lengths-file broken.json": "--lengths-file: broken.json, line 1: not JSON",
        "--tokens many": "Invalid value for '--tokens': 'many'; expected a whole number",
        "--tokens 0": "Invalid value for '--tokens': '0'; expected a number greater than or equal to 1",
        "--op ssd_update --device cpu": "ssd_update: its states lie in a pool, which a bench does not draw; time the",
        "--sizes d": "--sizes: 'd' in 'd'; expected sizes of axes, such as d=4096,n=16",
        "--sizes d=0": "--sizes: d is '0' in 'd=0', expected a whole number above zero",
        "--sizes d=1,d=2": "--sizes: d comes twice in 'd=1,d=2'; name it once",
        "--sizes ''": "--sizes: '' in ''; expected sizes of axes",
        "--options activation": "--options: 'activation' in 'activation'; expected options of the op, such as",
        "--options ''": "--options: '' in ''; expected options of the op",
        "--against ference --device cpu": "no baseline is called 'ference'; did you mean reference?",
        "--threads 0": "Invalid value for '--threads': '0'; expected a number greater than or equal to 1",
        "--threads two": "Invalid value for '--threads': 'two'; expected a whole number",
        "--sweep layers": "no sweep is called 'layers'; there are: tokens, sequences, longest",
        "--sweep tokens --layout L1": "--sweep: cannot be given together with --layout",
        "--plot x.png": "--plot draws a sweep; add --sweep tokens, sequences or longest",
        "--sweep tokens --plot x.jpg": "--plot: x.jpg has to end in .png or .svg",
        "--json no/b.json --device cpu": "--json: the folder no of no/b.json does not exist; create it first",
        "--json '' --device cpu": "--json:  is a folder; expected the name of a file",
        "--compare no.json": "--compare: no.json: No such file or directory",
        "--compare folder": "--compare: folder is a folder; expected a file that `packproof bench --json` wrote",
        "--compare broken.json": "--compare: broken.json: damaged, not JSON",
        "--compare empty.json": "--compare: empty.json was not written by `packproof bench --json` in version 1",
        "stack --model mamba2-14b": "no model is called 'mamba2-14b'; did you mean mamba2-1.4b? there are: mamba-tiny",
        "stack --model ''": "--model: '' names nothing; leave it out for the default",
        "stack --model mamba-1.4b --device cpu": "--model: mamba-1.4b needs a GPU; references on a CPU train mamba-t",
        "stack --model mamba-tiny,mamba-1.4b": "--model: mamba-tiny, mamba-1.4b do not train on the same documents; a",
        "stack --modes pack": "no mode is called 'pack'; did you mean packed? there are: single, padded, packed, mamb",
        "stack --device gpu": "no device is called 'gpu'; did you mean cuda?",
        "stack --steps 0": "Invalid value for '--steps': '0'; expected a number greater than or equal to 1",
        "stack --packs x": "Invalid value for '--packs': 'x'; expected a whole number",
        "stack --tokens 32 --device cpu": "--tokens: 32; documents have up to 64 tokens, and none is cut",
        "stack --json no/s.json --device cpu": "--json: the folder no of no/s.json does not exist; create it first",
        "stack --lengths-file lengths.txt": "No such option: --lengths-file; it is an option of `packproof bench "
        "kernels` and `packproof bench packing`; see `packproof bench stack --help`",
        "--op rope --modes packed": "--modes; it is an option of `packproof bench stack`; see `packproof bench kernels",
        "packing --packs 3": "--packs; it is an option of `packproof bench stack`; see `packproof bench packing --h",
        "--packs 3 packing": "--packs; it is an option of `packproof bench stack`; see `packproof bench packing --h",
        "fp8 --device cpu": "--device; it is an option of `packproof bench kernels` and `packproof bench stack`",
        "stack --nowhere": "No such option: --nowhere; see `packproof bench stack --help`",
        "stack again": "Got unexpected extra argument(s) (again); see `packproof bench stack --help`",
        "ranks --ranks 0": "Invalid value for '--ranks': '0'; expected a number greater than or equal to 1",
        "ranks --ranks 2 --simulated 2": "--simulated: cannot be given together with --ranks; choose one",
        "stak --steps 3": "No such command 'stak'; did you mean stack? there are: kernels, packing, stack, ranks, fp8",
        "kernels --op rop": "no op is called 'rop'; did you mean rope?",
        "m --op rope --device cpu": f"target 'm'; {FORM}",
        "no.py:f --op rope --device cpu": "target 'no.py:f': there is no file no.py",
    },
    "museum": {
        "--op rop": "no op is called 'rop'; did you mean rope?",
        "--class stride": "no class is called 'stride'; did you mean strides?",
        "--class ''": "no class is called ''",
        "--op attention --class wrong-grid": "--op attention and --class wrong-grid: none of ",
        "shoow": "No such command 'shoow'. Did you mean 'show'?",
        "show": "Missing argument 'ID...'; see `packproof museum show --help`",
        "show --profile quick": "No such option: --profile; it is an option of `packproof museum run`; see",
        "show S1777": f"no entry is called 'S1777'; did you mean S17? there are {len(entries())}, from",
        "show s17": f"no entry is called 's17'; did you mean S17? there are {len(entries())}, from",
        "show ''": f"no entry is called ''; there are {len(entries())}, from C1 to G42; `packproof museum` shows them",
        "run S1777": "no entry is called 'S1777'; did you mean S17?",
        "run S17 --op rope --device cpu": "--op rope: none of 1 entry is of it; leave an option out",
        "run --profile fast": "no profile is called 'fast'",
        "run --device gpu": "no device is called 'gpu'; did you mean cuda?",
        "run --seed x": f"Invalid value for '--seed': 'x'; expected {SEED}; see `packproof museum run --help`",
        "run --seed -1": f"Invalid value for '--seed': '-1'; expected {SEED}",
        "run --json no/m.json --device cpu": "--json: the folder no of no/m.json does not exist",
        "rogues R999": "no rogue is called 'R999'; did you mean R99? there are 233, from R1 to R233",
        "alarms scan.ownn_grid": "no correct kernel is called 'scan.ownn_grid'; did you mean scan.own_grid?",
        "alarms --seeds 0": "Invalid value for '--seeds': '0'; expected a number greater than or equal to 1",
        "compare now": "Got unexpected extra argument(s) (now); see `packproof museum compare --help`",
        "compare --json folder": "--json: folder is a folder; expected the name of a file",
    },
    "mutate": {
        "--device gpu": "no device is called 'gpu'; did you mean cuda?",
        "--device ''": "no device is called ''; there are: cpu, cuda",
        "--sample 0": "Invalid value for '--sample': '0'; expected a number greater than or equal to 1",
        "--jobs none": "Invalid value for '--jobs': 'none'; expected a whole number",
        "--kernel rop_fwd": "no kernel is called 'rop_fwd'; there are 156, from",
        "--kernel rope --op rop": "no op is called 'rop'; did you mean rope?",
    },
    "proof": {
        "": "Missing argument 'folder'; see `packproof proof --help`",
        "folder out.md": "Missing option '--json'; see `packproof proof --help`",
        "no out.md --json out.json": "no/museum.json: No such file or directory; `make proof` writes it",
        "folder no/out.md --json out.json": "PAGE: the folder no of no/out.md does not exist; create it first",
    },
}
WRONG = {f"{command} {line}".strip(): said for command, lines in LINES.items() for line, said in lines.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that no command can use."""
    where = tmp_path_factory.mktemp("wrong")
    (where / "folder").mkdir()
    for name, text in FILES.items():
        (where / name).write_text(text)
    return where


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_refused_in_one_line(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(folder):
        assert main.run(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"packproof: .{10,400}\n", err)
    assert WRONG[line] in err
