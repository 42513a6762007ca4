"""Tables of a terminal and of Markdown, from the same columns."""

from packproof.harness.report.formats.table import (
    Column,
    fitted_table,
    markdown_table,
    numbers,
    table_line,
    texts,
    title_line,
)

COLUMNS = (*texts("op"), *numbers("tokens", "ms"))


def test_complete_rows_are_aligned_and_end_without_spaces() -> None:
    assert fitted_table(COLUMNS, [("ssd", "64", "1.25"), ("causal_conv1d", "1,024", "10")]) == [
        "op               tokens    ms",
        "ssd                  64  1.25",
        "causal_conv1d     1,024    10",
    ]
    assert fitted_table(texts("op", "reason"), [("rope", "")]) == ["op    reason", "rope"]
    assert fitted_table(texts("op"), []) == ["op"]


def test_a_growing_table_has_given_widths_and_cuts_nothing() -> None:
    columns = (Column("op", 6), Column("ms", 5, right=True))
    assert title_line(columns, "  ") == "  op       ms"
    assert table_line(columns, ("rope", "1.5")) == "rope    1.5"
    assert table_line(columns, ("causal_conv1d", "1.5")) == "causal_conv1d  1.5"


def test_markdown_aligns_numbers_right_and_escapes_the_separator() -> None:
    assert list(markdown_table(COLUMNS, [("a|b", "64", "")])) == [
        "| op | tokens | ms |",
        "| --- | ---: | ---: |",
        "| a\\|b | 64 |  |",
    ]


def test_a_short_row_ends_in_empty_cells() -> None:
    assert list(markdown_table(texts("", "a", "b"), [("failed",)])) == [
        "| | a | b |",
        "| --- | --- | --- |",
        "| failed | | |",
    ]
