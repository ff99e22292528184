"""What everybody agrees on: model files, specs, layer programs, op contracts, engines, sampling and tokenizers."""
