"""What a laptop runs: bundles, sessions, token trees, drafters, verifiers, the decode loop and the command
line."""
