"""Ways to propose a token tree, one small file each."""
