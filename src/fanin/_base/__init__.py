"""Helpers shared by all packages; imports only the standard library."""
