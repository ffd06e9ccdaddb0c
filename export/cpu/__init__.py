"""Graphs for the CPU alone: weights in 4-bit planes, which the runtime multiplies with float activations."""
