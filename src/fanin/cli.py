"""Command line of fanin."""


def main() -> None:
    """Entry point of the ``fanin`` command."""
