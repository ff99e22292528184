"""One program a layer kind, written over an OpSet; a family that has the kind shares it.

A program is a function of handles: it never looks inside an array, so the same program runs on NumPy, on a GPU, inside
a captured graph or on a kernel developer's port.
"""
