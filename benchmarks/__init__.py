"""Figures measured on the machine at hand: ratios within one run, never parts of the tests."""
