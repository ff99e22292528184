"""The NumPy op set and engine: readable, exact, slow. What it answers is right for every model."""
