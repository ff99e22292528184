"""Passages that any text model can continue: prose in three scripts, code, data and a list."""

from __future__ import annotations

PASSAGES: tuple[str, ...] = (
    "The smith lights the forge before dawn, when the village is still dark. By the time the first farmer comes "
    "with a broken plough, the coals are white and the water in the trough has stopped steaming. She looks at "
    "the break, turns the iron over twice, and says that it will be done by noon, because iron that was well "
    "made once can be made well",
    'def cooled(bars, room=20.0):\n    """The bars that can be touched."""\n    found = []\n    for bar in '
    "bars:\n        if bar.temperature <= room + 15:\n            found.append(bar)\n    return found\n\n\nclass "
    "Forge:\n    def __init__",
    "대장간의 불은 해가 뜨기 전에 켜진다. 쇠가 붉게 달아오르면 망치 소리가 골목 끝까지 들리고, 아이들은 문 앞에 "
    "서서 불꽃을 센다. 대장장이는 말이 없지만 그의 손은",
    '{"forge": "north", "bars": [{"id": 1, "steel": "C45", "kg": 2.5}, {"id": 2, "steel": "C60", "kg": 1.75}], '
    '"open": true, "smiths": ["Ada", "Jun"], "orders": [{"id": 17, "what": "hinge", "count": 4}, {"id": 18, '
    '"what":',
    "Was ein Schmied am Morgen braucht:\n1. trockene Kohle\n2. ein sauberes Becken Wasser\n3. zwei Hämmer, den "
    "leichten und den schweren\n4. Ruhe\n5.",
    "Question: A forge makes 12 hinges a day and sells 9 of them. How many hinges are left after 5 days?\n"
    "Answer: Each day 12 - 9 = 3 hinges stay, so after 5 days there are 15.\nQuestion: A bar of 40 cm is cut "
    "into pieces of 8 cm. How many pieces are there?\nAnswer:",
)  # fmt: skip
