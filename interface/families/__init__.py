"""Model readers, one a GGUF dialect: metadata and tensor names in, a spec and a table of named weights out."""
