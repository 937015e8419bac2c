"""Pictures with boxes: references, batches, groups, resuming, bad files."""
