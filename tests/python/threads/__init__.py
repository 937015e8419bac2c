"""Workers that are threads: what holds for processes holds for them, and what cannot is said."""
