"""A chat in a terminal: a client of a running server, or of one that it starts for itself."""
