"""The benchmarks: what each one measures, and its report."""
