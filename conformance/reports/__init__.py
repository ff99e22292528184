"""What a run found, for a terminal, for JUnit, and as one page."""
