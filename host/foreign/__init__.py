"""Running bundles in the layout of Qualcomm AI Hub's own exports: CL columns whatever the width, parts,
quantised K/V."""
