"""Layouts to time: the named ones by their figures, sweeps, and lengths that users give."""

from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.bench.kernels.command import choose_layouts
from packproof.bench.kernels.layouts import NAMED_LAYOUTS, SWEEPS, BenchLayout, from_file, from_text, named_layouts


@pytest.mark.parametrize(
    ("name", "sequences", "shortest", "longest"),
    [("L1", 64, 1024, 1024), ("L2", 101, 89, 1933), ("L3", 2401, 3, 32_768), ("L4", 1, 65_536, 65_536)],
)
def test_named_layouts_are_those_of_the_published_figures(
    name: str, sequences: int, shortest: int, longest: int
) -> None:
    [layout] = named_layouts([name], 65_536)
    assert layout.tokens == 65_536
    assert (len(layout.lengths), min(layout.lengths), layout.longest) == (sequences, shortest, longest)


@pytest.mark.parametrize("tokens", [1, 2, 3, 60, 500, 2048, 4096, 100_001, 262_144])
def test_named_layouts_scale_to_any_number_of_tokens(tokens: int) -> None:
    for layout in named_layouts(list(NAMED_LAYOUTS), tokens):
        assert layout.tokens == tokens, layout.name
        assert min(layout.lengths) >= 1


def test_a_sweep_over_tokens_multiplies_them() -> None:
    layouts = SWEEPS["tokens"](65_536, 0)
    assert [layout.tokens for layout in layouts] == [4096, 16_384, 65_536, 262_144, 1_048_576]
    assert {layout.longest for layout in layouts} == {1024}


def test_a_sweep_over_sequences_keeps_the_tokens() -> None:
    layouts = SWEEPS["sequences"](65_536, 0)
    assert [len(layout.lengths) for layout in layouts] == [1, 16, 128, 512, 2401, 16_384, 65_536]
    assert {layout.tokens for layout in layouts} == {65_536}


@pytest.mark.parametrize("tokens", [1, 3, 64, 65, 2048, 65_536])
def test_a_sweep_over_the_longest_keeps_tokens_and_sequences(tokens: int) -> None:
    layouts = SWEEPS["longest"](tokens, 0)
    assert {layout.tokens for layout in layouts} == {tokens}
    assert {len(layout.lengths) for layout in layouts} == {min(64, tokens)}
    longest = [layout.longest for layout in layouts]
    assert longest == sorted(set(longest))
    assert longest[-1] == tokens - min(64, tokens) + 1


def test_lengths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert from_text("5,0, 7") == BenchLayout("lengths", (5, 0, 7))
    lines, listed = tmp_path / "mine.txt", tmp_path / "mine.json"
    lines.write_text("5\n\n0\n7\n")
    listed.write_text("[5, 0,\n7]")
    assert from_file(str(lines)) == from_file(str(listed)) == BenchLayout("mine", (5, 0, 7))


@pytest.mark.parametrize("text", ["5,-1", "5,,7", "5.5", "a", ""])
def test_invalid_lengths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected counts of tokens separated by commas, such as 5,0,7"):
        from_text(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"5\n7 8\n", "line 2: '7 8'; expected a count of tokens"),
        (b"5\n-3\n", "line 2: '-3'; expected a count of tokens"),
        (b"[5,\n7,,]", "line 2: not JSON"),
        (b"[5, 7.5]", "item 1: 7.5; expected a count of tokens"),
        (b"[5, true]", "item 1: true; expected a count of tokens"),
        (b"\n", "holds no lengths"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name_and_place(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError) as error:
        from_file(str(file))
    assert str(error.value).startswith(f"--lengths-file: {file}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        from_file(str(tmp_path / "none"))


def test_layouts_are_chosen_in_one_way_at_a_time() -> None:
    assert [layout.name for layout in choose_layouts("cpu")] == ["L1", "L2", "L3", "L4"]
    assert choose_layouts("cuda", names=["L4"])[0].lengths == (65_536,)
    with pytest.raises(UsageError, match="--sweep: cannot be given together with --lengths"):
        choose_layouts("cpu", lengths="5", sweep="tokens")
    with pytest.raises(UsageError, match="--tokens: the lengths of --lengths say how many"):
        choose_layouts("cpu", lengths="5", tokens=3)
    with pytest.raises(UsageError, match="no sweep is called 'token'; did you mean tokens"):
        choose_layouts("cpu", sweep="token")
