"""Training a draft from the target itself. torch is imported inside this package alone."""
