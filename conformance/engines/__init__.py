"""The engine checks: recorded models, laws of the engine's interface, other engines, and the first op that parts."""
