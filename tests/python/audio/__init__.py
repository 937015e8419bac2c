"""Sound: references, batches, resuming, bad files."""
