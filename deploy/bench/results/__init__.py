"""Results as pure data: one envelope for all suites; reading, writing and comparing."""
