"""Word lists written as running text: a list literal of a hundred names would fill pages."""


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    return text.split()
