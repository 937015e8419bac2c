"""Training jobs that are interrupted at random moments, and what must be gone afterwards."""
