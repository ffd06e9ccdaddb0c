"""Bundles out of what Qualcomm AI Hub exports, and folders that Genie loads out of bundles."""
