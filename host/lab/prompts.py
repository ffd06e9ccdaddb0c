"""Thirty short prompts of our own writing in six categories: what drafters are compared on."""

from __future__ import annotations

from dataclasses import dataclass

CATEGORIES = ("chat", "translation", "summary", "qa", "maths", "code-edit")


@dataclass(frozen=True, slots=True)
class LabPrompt:
    """One user message and its category."""

    category: str
    text: str


_HARBOUR = """\
The harbour of Vell was dug in 1790 by four hundred men in two summers. For a century it served the herring
boats, which left before dawn and came back by noon. When the herring moved north in 1893 the boats
followed, and the harbour stood empty until a ferry line opened in 1921. Today the ferry carries two
thousand people a day in July and barely eighty in January."""

_BEES = """\
A bee colony does not sleep through the winter. When it grows cold the bees form a tight ball around their
queen and shiver with their flight muscles, which warms the middle of the ball to more than thirty
degrees. The outer bees change places with the inner ones, so that none of them freezes. All winter long
they live on the honey they stored in summer, up to twenty kilograms of it."""

_MINUTES = """\
Minutes of the garden club, 3 May. Present: Anna, Boris, Chen, Dora. Anna reported that the greenhouse roof
leaks in two places; Boris will buy sealant for at most 40 euros. Chen wants to replace the old pump; the
others asked for three offers by June. Dora showed the plan for the summer party on 12 July; all agreed.
The fee stays at 25 euros."""

_FIBONACCI = """\
def fibonacci(n):
    a = 0
    b = 1
    for i in range(n):
        c = a + b
        a = b
        b = c
    return a
"""

_ACCOUNT = """\
class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount

    def withdraw(self, amount):
        self.balance = self.balance - amount
"""

_CONFIG = """\
{
  "name": "weather",
  "version": "1.0.0",
  "units": "metric",
  "stations": ["north", "south", "harbour"],
  "interval": 60,
  "retry": {"times": 3, "delay": 5}
}
"""

_SORT = """\
function sortByAge(people) {
  for (var i = 0; i < people.length; i++) {
    for (var j = 0; j < people.length - 1; j++) {
      if (people[j].age > people[j + 1].age) {
        var swap = people[j];
        people[j] = people[j + 1];
        people[j + 1] = swap;
      }
    }
  }
  return people;
}
"""

_QUERY = """\
SELECT name, city, total FROM orders WHERE total > 100 AND city = 'Vell' ORDER BY total DESC LIMIT 10;
SELECT name, city, total FROM orders WHERE total > 100 AND city = 'Marn' ORDER BY total DESC LIMIT 10;
"""

_TEXTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "I moved to a new town and know nobody. How do I make friends?",
        "Tell me a short story about a clockmaker who is always late.",
        "What should I cook tonight with rice, eggs and one onion?",
        "My neighbour plays the drums at night. Help me write him a friendly note.",
        "Which is the better pet for a small flat, a cat or a dog? Give reasons.",
    ),
    "translation": (
        "Translate into French: The train to the coast leaves at eight and comes back at night.",
        "Translate into German: My sister bought a red bicycle, but the bicycle was too small for her.",
        "Translate into Spanish: Please close the window, turn off the light and close the door.",
        "Translate into Italian: We eat bread and cheese, we drink water and wine, and we sing old songs.",
        f"Translate this text into French, sentence by sentence, each English one first.\n\n{_BEES}",
    ),
    "summary": (
        f"Summarise in two sentences.\n\n{_HARBOUR}",
        f"Give the three main points of this text as a list.\n\n{_BEES}",
        f"Write a list of who has to do what by when.\n\n{_MINUTES}",
        f"Find a title for this text and quote the sentence that supports it.\n\n{_HARBOUR}",
        f"Shorten this text to half its length, keeping its words where you can.\n\n{_MINUTES}",
    ),
    "qa": (
        f"When did the ferry line open, and why was the harbour empty before? Quote the text.\n\n{_HARBOUR}",
        f"How do the bees keep warm in winter? Answer with sentences of the text.\n\n{_BEES}",
        f"How much may the sealant cost, and who buys it?\n\n{_MINUTES}",
        "What is the capital of Australia, and why is it not Sydney?",
        "Why does ice float on water while most solids sink in their own melt?",
    ),
    "maths": (
        "A train travels 240 km in 3 hours. How far does it travel in 5 hours? Explain step by step.",
        "List the first ten multiples of 7 and the first ten multiples of 9.",
        "A garden is 12 m long and 8 m wide. How much fence is needed around it, and what is its area?",
        "Anna has 3 times as many marbles as Ben. Together they have 48. How many has each? Show the steps.",
        "Write the multiplication table of 6 from 1 to 10, one line each.",
    ),
    "code-edit": (
        f"Rename the function to fib and add type hints. Print the whole code.\n\n{_FIBONACCI}",
        f"Make withdraw raise ValueError when the balance is too small. Print the whole class.\n\n{_ACCOUNT}",
        f'Add a station "east" and change the interval to 30. Print the whole file.\n\n{_CONFIG}',
        f"Replace var by let everywhere. Print the whole function.\n\n{_SORT}",
        f"Add a third query for the city Oren in the same way and print all three.\n\n{_QUERY}",
    ),
}

LAB_PROMPTS = tuple(LabPrompt(category, text) for category in CATEGORIES for text in _TEXTS[category])
