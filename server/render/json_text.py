"""JSON as the server writes it: compact, UTF-8, keys in the order given."""

from __future__ import annotations

import json
from typing import Any

CONTENT_TYPE = "application/json; charset=utf-8"


def json_bytes(value: Any) -> bytes:
    """`value` as UTF-8 JSON.  Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
