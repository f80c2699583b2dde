"""Callbacks that put a ``Sparsifier`` into other libraries' training loops."""
