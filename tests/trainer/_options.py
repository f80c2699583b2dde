"""Options of a Sparsifier by the names of their fields, for tests that vary single ones."""

from dataclasses import fields

from fanin.trainer.sparsifier_options import GROUPS


def grouped(**options):
    """Keywords for Sparsifier, with the fields of its groups put into the groups."""
    keywords = dict(options)
    for keyword, kind in GROUPS.items():
        names = {field.name for field in fields(kind)} & options.keys()
        if names:
            keywords[keyword] = kind(**{name: keywords.pop(name) for name in names})
    return keywords
