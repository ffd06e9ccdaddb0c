"""What passes cost where, which tree pays there, and how a run keeps to it."""
