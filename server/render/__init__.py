"""From typed events to the JSON of each API."""
