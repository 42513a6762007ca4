"""Singular, plural and article of nouns in messages."""

import pytest

from packproof.base.wording import article, plural


@pytest.mark.parametrize(
    ("noun", "one", "two"),
    [
        ("token", "1 token", "2 tokens"),
        ("axis", "1 axis", "2 axes"),
        ("entry", "1 entry", "2 entries"),
        ("key", "1 key", "2 keys"),
        ("channel per head", "1 channel per head", "2 channels per head"),
    ],
)
def test_counts_agree_with_their_noun(noun: str, one: str, two: str) -> None:
    assert [plural(1, noun), plural(2, noun)] == [one, two]
    assert plural(0, noun) == two.replace("2", "0")


def test_the_article_agrees_with_the_sound() -> None:
    assert [article(noun) for noun in ("list", "int")] == ["a list", "an int"]
