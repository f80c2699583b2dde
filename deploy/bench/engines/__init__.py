"""The protocol of an engine, and all engines."""
