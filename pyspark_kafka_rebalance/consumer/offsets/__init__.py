"""Sets of offsets, their form in a commit's metadata, leader epochs. Pure."""
