"""What a run wrote down: traces, their page, and the comparison and replay of two runs."""
