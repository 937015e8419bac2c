"""What training libraries need besides a loader. Each module imports its library, and nothing else does."""
