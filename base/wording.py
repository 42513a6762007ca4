"""Grammar of messages: singular and plural, and the indefinite article."""


def plural(count: int, noun: str) -> str:
    """A count with its noun, pluralized: "1 axis", "2 axes", "0 query heads", "3 channels per head"."""
    if count == 1:
        return f"1 {noun}"
    head, per, unit = noun.partition(" per ")
    if head.endswith("xis"):
        return f"{count} {head[:-2]}es{per}{unit}"
    ies = head.endswith("y") and head[-2:-1] not in "aeiou"
    return f"{count} {head[:-1] + 'ies' if ies else head + 's'}{per}{unit}"


def article(noun: str) -> str:
    """The noun after "a" or "an"."""
    return f"{'an' if noun[:1].lower() in set('aeiou') or noun == 'ndarray' else 'a'} {noun}"


def kind(value: object) -> str:
    """The type of a value with its article, for a message: "None", "a list", "an ndarray"."""
    return "None" if value is None else article(type(value).__name__)
