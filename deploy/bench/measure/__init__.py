"""Measuring: the timing loop, statistics, problems, the machine and its conditions."""
