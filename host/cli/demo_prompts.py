"""Three prompts of our own that show where trees pay: a chat, a text to copy with corrections, and code."""

from __future__ import annotations

CHAT = "Explain in a few sentences why the sky is blue during the day and red in the evening."

COPY_EDIT = """\
Correct the spelling mistakes in this text. Answer with the whole corrected text and nothing else.

The old lighthouse at the end of the harbour was built in 1848, after three ships had been lost on the rocks
in one winter. Its lamp was lit with whale oil at first, then with parafin, and since 1931 with electricity.
The keeper and his family lived in the small white house beside the tower, and every evening one of them
climbed the hundred and twelve steps to wind the clockwork that turned the lense. When the last keeper
retired in 1974, the village bought the house for a single pound and made it a museum. Today the clockwork
still turns on Sundays, and children may ring the brass fog bell, which can be heard as far as the next
village."""

CODE = """\
Add a docstring to every method of this Python class and print the whole class again.

class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("peek at an empty stack")
        return self.items[-1]

    def __len__(self):
        return len(self.items)
"""

PROMPTS = {"chat": CHAT, "copy-edit": COPY_EDIT, "code": CODE}
