"""What the oracle is asked: sampling runs for ids, and HTTP requests whose answers are kept byte for byte."""
