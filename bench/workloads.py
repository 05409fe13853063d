"""Prompts of the speculation benchmarks, written for them: work that copies from its prompt, and text that does not."""

from __future__ import annotations

_CODE = '''\
class Ledger:
    """Amounts by account, in cents."""

    def __init__(self, name):
        self.name = name
        self.tbl = {}
        self.count = 0

    def add(self, account, amount):
        if account not in self.tbl:
            self.tbl[account] = 0
        self.tbl[account] += amount
        self.count += 1
        return self.tbl[account]

    def move(self, source, target, amount):
        if self.tbl.get(source, 0) < amount:
            raise ValueError("not enough on " + source)
        self.tbl[source] -= amount
        self.tbl[target] = self.tbl.get(target, 0) + amount
        self.count += 1

    def total(self):
        return sum(self.tbl.values())
'''

_SHORT_CODE = """\
class Queue:
    def __init__(self, limit):
        self.lst = []
        self.limit = limit

    def push(self, item):
        if len(self.lst) == self.limit:
            raise OverflowError("full")
        self.lst.append(item)
"""

_REPORT = """\
The harbour of Westerlund was closed for eleven days in March after two ferries collided in dense fog near the \
northern pier. Nobody was hurt, but the larger ferry, the Marguerite, lost about four hundred litres of diesel before \
the leak was sealed. Volunteers from three villages cleaned the beach between the pier and the old lighthouse by hand. \
The port authority said that the radar of the smaller ferry had been out of order since January and that a replacement \
had been ordered twice. The operator of the ferry denied this and published a maintenance log that shows a working \
radar on the day before the accident. An independent inquiry led by the retired judge Helen Aasgaard will report in \
September. Fishing boats were allowed to leave the harbour again on the fifth day, under escort. The town council \
voted to pay for a second fog signal and for a rescue boat that is stationed at the northern pier all year. Insurance \
covers the damage to the Marguerite, which is estimated at nine hundred thousand crowns. The smaller ferry, the \
Petrel, was towed to the shipyard in Holm and will not return before the summer."""

_NOTES = """\
[1] The bridge over the Tarn was opened in 1904 and widened in 1931; its third arch was rebuilt after the flood of 1956.
[2] Measurements in 2018 found that the second pier had sunk by fourteen millimetres since the last survey in 1997.
[3] Divers reported that the river had washed out the gravel under the second pier to a depth of nearly two metres.
[4] Traffic over the bridge has doubled since the motorway was opened, and most of the new traffic consists of heavy lorries.
[5] The engineers recommend closing the bridge to lorries at once and filling the hole under the pier before the winter."""

_SHORT_NOTES = """\
[1] The library bought four hundred books last year.
[2] Rain came through the roof of the reading room twice in November.
[3] The shelves on the north wall are rotten and must be replaced."""

_SHORT_JSON = (
    '{"name":"Olga Petrova","age":27,"city":"Kazan","role":"baker"}',
    '{\n  "name": "Olga Petrova",\n  "age": 27,\n  "city": "Kazan",\n  "role": "baker"\n}',
)

_JSON = (
    '{"order":4711,"customer":{"name":"Anders Holm","street":"Harbour Street 12","city":"Bergen","country":"Norway"},"items":'
    '[{"article":"hammer","count":2,"price":12.9},{"article":"saw","count":1,"price":18.5},{"article":"drill","count":1,"price":'
    '89.0}],"paid":true,"comment":"Please leave the parcel with the neighbours"}'
)

Messages = list[dict[str, str]]


def _asked(*turns: str) -> Messages:
    """User and assistant in turn: an example of the answer's form, where a small model needs one."""
    return [{"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)]


#: Work whose answer repeats its prompt.
COPY: dict[str, Messages] = {
    "rename": _asked(
        f"Rename the attribute `lst` to `items` and change nothing else.\n\n{_SHORT_CODE}",
        _SHORT_CODE.replace("lst", "items"),
        f"Rename the attribute `tbl` to `balances` and change nothing else.\n\n{_CODE}",
    ),
    "summary": _asked(f"{_REPORT}\n\nCopy the first five sentences of the text above."),  # the plainest extractive summary
    "evidence": _asked(
        f"{_SHORT_NOTES}\n\nCopy notes 2 and 3 word for word.",
        "\n".join(_SHORT_NOTES.splitlines()[1:]),
        f"{_NOTES}\n\nCopy notes 2, 3, 4 and 5 word for word.",
    ),
    "json": _asked(
        f"Reformat this JSON with one key per line:\n\n{_SHORT_JSON[0]}",
        _SHORT_JSON[1],
        f"Reformat this JSON with one key per line:\n\n{_JSON}",
    ),
}

#: Text that owes little to its prompt.
OPEN: dict[str, Messages] = {
    "story": _asked("Write a short story about a lighthouse keeper who finds a letter in a bottle."),
    "letter": _asked("Write a letter to a friend about your first week in a new city, with a surprise at the end."),
    "recipe": _asked("How do I bake a simple loaf of bread at home? Explain each step."),
    "history": _asked("Tell me about the history of the printing press and how it changed Europe."),
    "french": _asked(
        "Translate into French: The cat sleeps on the chair.",
        "Le chat dort sur la chaise.",
        "Translate into French: The old man walked slowly along the river and thought about the house where he had been born, "
        "the garden behind it, and the summer evenings when his mother read aloud to her children.",
    ),
    "spanish": _asked(
        "Translate into Spanish: The cat sleeps on the chair.",
        "El gato duerme en la silla.",
        "Translate into Spanish: In the morning the train left the station, crossed the mountains, and reached the sea before "
        "the evening, where my sister was waiting with two bicycles and a basket of bread and fruit.",
    ),
    "advice": _asked("What should I think about before I adopt a dog? Give me several points."),
}
