"""The op checks: every op of `OpSet` held against its definition, on drawn cases, inside bands that are derived."""
