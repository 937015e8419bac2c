"""What training libraries need to be handed besides a loader. Each module imports its library, and nothing else does."""
