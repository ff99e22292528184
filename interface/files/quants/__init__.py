"""Block formats of ggml: how the weights of a tensor are laid out in bytes, decoded and encoded.

One description a format serves everybody: the reference engine decodes through it, an accelerated engine takes its
field offsets from `BlockFormat.layout`, and the checks compare both against it.
"""

from bloomery.interface.files.quants.block_format import BlockFormat, UnsupportedFormat
from bloomery.interface.files.quants.formats import FORMATS, by_name, decode, decode_into, encode

__all__ = ["FORMATS", "BlockFormat", "UnsupportedFormat", "by_name", "decode", "decode_into", "encode"]
