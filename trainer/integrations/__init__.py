"""Callbacks that add a ``Sparsifier`` to training loops of other libraries."""
