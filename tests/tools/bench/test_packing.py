"""`packproof bench packing`: the padding that PackMamba reports, and one row for each packer."""

from pathlib import Path

import pytest

from packproof.bench.packing import PACK_CAPACITY, measure_packers, sample_lengths
from packproof.cli import ending, main


def test_padding_is_that_of_the_paper() -> None:
    """Xu et al. 2024: 19.1 % in order, 0.41 % greedily, for documents of 57 to 2,048 tokens, 646 on average."""
    lengths = sample_lengths(20_000)
    assert (min(lengths), max(lengths)) == (57, 2048)
    assert abs(sum(lengths) / len(lengths) - 646) < 10
    rows = {row.packer: row for row in measure_packers(lengths, PACK_CAPACITY)}
    assert abs(rows["in_order"].padding - 0.191) < 0.02
    assert rows["best_fit"].padding < 0.005
    assert rows["split"].padding < 1 / rows["split"].packs
    assert rows["split"].cuts > 0 == rows["in_order"].mean_displacement == rows["split"].mean_displacement
    assert 0 < rows["first_fit"].mean_displacement < rows["best_fit"].mean_displacement


def test_the_command_packs_the_lengths_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("5\n2\n3\n4\n1\n9\n")
    assert main.run(["bench", "packing", "--lengths-file", str(file), "--tokens", "10"]) == ending.SUCCESS
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "6 documents of 1 to 9 tokens, mean 4, in packs of 10"
    assert [line.split()[:3] for line in said[3:]] == [
        ["in_order", "3", "20.00%"],
        ["first_fit", "3", "20.00%"],
        ["best_fit", "3", "20.00%"],
        ["split", "3", "20.00%"],
    ]
