"""The judge: checks, recordings and fixtures that any engine can be held against."""
