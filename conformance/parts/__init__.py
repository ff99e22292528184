"""The parts beneath an engine and a server: block formats, tokenizers, samplers."""
