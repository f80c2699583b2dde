"""What is timed: the protocol of an engine, and every engine."""
