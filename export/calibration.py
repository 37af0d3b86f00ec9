"""Two texts of prose, dialogue, code and data, written here so that no model has them by heart.

PRACTICE (about a thousand tokens) shows which inputs of a layer are large, and so where rounding
must be careful. TEXT (about two thousand) is what quality is measured on: it must share nothing
with PRACTICE, or the measurement would praise itself.
"""

PRACTICE = '''\
Every Thursday the market fills the square between the old town hall and the river. Farmers \
arrive before sunrise, when the lamps are still lit, and by eight the first baskets are empty. \
The cheese stall at the corner belongs to a family that has sold there for three generations; \
their goats graze on the hills above the quarry, and the best cheese is gone by nine. A blind man \
plays the accordion near the fountain. Nobody knows where he lives, but he has never missed a \
week.

User: Can you explain what a hash table is, in simple words?
Assistant: A hash table stores pairs of a key and a value. It turns the key into a number, and \
uses that number to decide in which of many small boxes the value is kept. To find the value \
again, the same number is computed, so only one box has to be opened. If two keys end up in the \
same box, the box holds a short list, and the list is searched from the start.
User: Thanks! What is 15% of 240?
Assistant: 15% of 240 is 0.15 x 240 = 36.

```python
import argparse
import sys
from pathlib import Path


def count_words(path: Path) -> dict[str, int]:
    """How often each word occurs, in lower case."""
    counts: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for word in line.lower().split():
            word = word.strip(".,;:!?()[]")
            if word:
                counts[word] = counts.get(word, 0) + 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the words of a file.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--top", type=int, default=10)
    args = parser.parse_args()
    if not args.path.exists():
        print(f"{args.path} does not exist", file=sys.stderr)
        return 1
    ranked = sorted(count_words(args.path).items(), key=lambda item: (-item[1], item[0]))
    for word, count in ranked[: args.top]:
        print(f"{count:6d}  {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
```

To run it on your own text, pass the name of a file: `python words.py notes.txt --top 20`. The \
result is sorted by frequency first and alphabet second, so that two runs never differ.

{"name": "garden-lights", "version": "2.4.1", "zones": [{"id": 1, "colour": "warm", "level": 60}, \
{"id": 2, "colour": "cold", "level": 15}], "schedule": {"on": "sunset", "off": "23:30"}}

The heart is a muscle with four chambers. Blood that has lost its oxygen enters on the right side \
and is pumped to the lungs; it comes back bright red on the left side and is pushed out to the \
rest of the body. Valves between the chambers open in one direction only. A healthy adult heart \
beats about seventy times a minute at rest, which makes more than a hundred thousand beats a day.

```javascript
function debounce(action, delay) {
  let timer = null;
  return function (...args) {
    clearTimeout(timer);
    timer = setTimeout(() => action.apply(this, args), delay);
  };
}

const search = debounce((text) => fetch(`/api/items?q=${encodeURIComponent(text)}`), 250);
document.querySelector("#query").addEventListener("input", (event) => search(event.target.value));
```

- Milk, two litres
- Brown bread
- Candles for Saturday (the long ones)
- Ask about the key for the cellar

Once upon a time there was a clockmaker who was afraid of the dark. He built clocks that glowed, \
clocks that chimed every minute, clocks that whispered the hour to anyone who could not sleep. \
One night all of them stopped together, and in the silence he heard, for the first time in forty \
years, the sea.
'''

TEXT = '''\
The ferry to Skarholm leaves twice a day, once before breakfast and once when the light is \
already going. In winter the second boat is often late, and nobody complains, because the only \
alternative is a road that climbs over the ridge and comes down through eleven hairpin bends. \
People who live on the island keep two clocks: one for the mainland and one for the boat. The \
harbour master, a patient woman called Ingrid Vale, writes the real departure time on a slate \
beside the ticket window, and wipes it clean with her sleeve whenever the wind changes its mind.

Last spring a new engine was fitted. It is quieter than the old one and burns a third less fuel, \
but it needs to be warmed up slowly, and the crew are still learning how slowly. "You cannot hurry \
metal," the mechanic likes to say. He keeps a notebook in which every start is recorded: the \
temperature of the water, the pressure of the oil, the number of minutes until the first turn of \
the propeller. After four months there were enough pages to see a pattern, and after six the \
pattern was clear enough to bet on. Cold mornings need nine minutes. Mild ones need five. \
Anything less, and something small and expensive begins to crack.

User: I have three boxes of apples. Each box holds 24 apples, and 5 apples in total are rotten. \
How many good apples do I have?
Assistant: Three boxes with 24 apples each make 3 x 24 = 72 apples. Taking away the 5 rotten ones \
leaves 72 - 5 = 67 good apples.
User: And if I share them among four people?
Assistant: 67 divided by 4 is 16 with 3 left over, so each person gets 16 apples and three apples \
remain. You could cut the last three into quarters, so that everybody receives three more pieces.
User: What is the capital of France, and which river runs through it?
Assistant: The capital of France is Paris. The river Seine runs through the city from east to west.

```python
from dataclasses import dataclass, field


@dataclass
class Account:
    """Money of one customer, in cents, so that no rounding is ever needed."""

    owner: str
    balance: int = 0
    history: list[tuple[str, int]] = field(default_factory=list)

    def deposit(self, amount: int) -> None:
        if amount <= 0:
            raise ValueError(f"deposit must be positive, got {amount}")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount: int) -> None:
        if amount > self.balance:
            raise ValueError(f"{self.owner} has {self.balance} cents, cannot take {amount}")
        self.balance -= amount
        self.history.append(("withdraw", amount))


def transfer(source: Account, target: Account, amount: int) -> None:
    source.withdraw(amount)
    target.deposit(amount)


def monthly_report(accounts: list[Account]) -> dict[str, int]:
    report = {}
    for account in sorted(accounts, key=lambda a: a.owner):
        report[account.owner] = account.balance
    return report
```

The function `transfer` does not need to restore anything when `withdraw` fails, because the \
exception is raised before any balance has changed. If `deposit` could fail as well, the two steps \
would have to be wrapped so that either both happen or neither does.

```json
{
  "station": "north-pier",
  "readings": [
    {"time": "2031-03-04T06:00:00Z", "temperature": 3.4, "wind": {"speed": 11.2, "from": "NW"}},
    {"time": "2031-03-04T07:00:00Z", "temperature": 3.9, "wind": {"speed": 12.7, "from": "NW"}},
    {"time": "2031-03-04T08:00:00Z", "temperature": 4.6, "wind": {"speed": 9.8, "from": "W"}}
  ],
  "battery": 0.87,
  "alarms": [],
  "next_service": null
}
```

## How to replace the filter

1. Switch the pump off at the wall and wait until the pressure gauge shows zero.
2. Unscrew the lid by hand. If it is stuck, use the strap wrench that came with the housing; never \
a hammer.
3. Lift the old cartridge out, and let it drip into a bucket for a minute.
4. Wipe the seal with a clean cloth and look for cracks. A cracked seal must be replaced at once.
5. Put the new cartridge in, with the arrow pointing down, and close the lid until it stops.

| part      | price  | weight | in stock |
|-----------|-------:|-------:|:--------:|
| cartridge |  14.50 |  310 g |   yes    |
| seal      |   2.20 |   12 g |   yes    |
| lid       |  19.00 |  540 g |    no    |

Why does bread rise? Yeast is a living thing, and when it is given warmth, water and sugar it \
begins to feed. One of the things it gives off is carbon dioxide, a gas, which is caught in the \
dough as bubbles. The dough can hold the bubbles because flour contains two proteins that join \
into long elastic strands when they are wet and kneaded. In the oven the gas expands, the water \
turns to steam, and for a few minutes the loaf grows quickly. Then the strands set, the crust \
hardens, and the shape is fixed for good. A loaf that was not kneaded enough has weak strands, so \
the gas escapes and the bread comes out flat and heavy.

```c
#include <stdio.h>
#include <stdlib.h>

/* Returns the index of the first element that is not smaller than key. */
static size_t lower_bound(const int *values, size_t count, int key) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (values[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int main(void) {
    int values[] = {2, 3, 5, 7, 11, 13, 17, 19};
    size_t count = sizeof values / sizeof values[0];
    for (int key = 0; key <= 20; key += 5)
        printf("%d -> %zu\\n", key, lower_bound(values, count, key));
    return EXIT_SUCCESS;
}
```

"Did you lock the gate?" asked Mira.

"I thought you did," said her brother, and the two of them stood very still in the dark \
kitchen, listening. Somewhere below the orchard a branch snapped. Then came a sound they both \
knew: the low, contented grunt of the neighbour's pig, which had found the fallen pears and had \
no intention of leaving before morning.

"We could wake Father."

"We could," she said slowly, "or we could learn to enjoy pears a little less."

SELECT customer.name, COUNT(*) AS orders, SUM(line.quantity * line.price) AS total
FROM customer
JOIN purchase ON purchase.customer_id = customer.id
JOIN line ON line.purchase_id = purchase.id
WHERE purchase.placed_at >= '2030-01-01'
GROUP BY customer.name
HAVING SUM(line.quantity * line.price) > 100
ORDER BY total DESC
LIMIT 10;

Dear Mr Okafor,

Thank you for your letter of 12 June. We are sorry that the second parcel reached you with a \
broken lid. A replacement left our warehouse this morning and should arrive within three working \
days; you do not need to send the damaged one back. If you would rather have the price refunded, \
please reply to this message and we will arrange it the same day.

With kind regards,
Hanna Lindqvist
Customer service

```typescript
type Task = { id: number; title: string; done: boolean };

export function summarise(tasks: Task[]): string {
  const open = tasks.filter((task) => !task.done);
  if (open.length === 0) return "Nothing left to do.";
  const titles = open.map((task) => `#${task.id} ${task.title}`).join(", ");
  return `${open.length} of ${tasks.length} tasks are open: ${titles}`;
}
```

The lighthouse at Cape Tern was built in 1871, after two ships had been lost on the same reef \
within a single month. Its lamp burned oil until 1926, then gas, and since 1958 it has been \
electric. Visitors may climb the 163 steps on Sundays between May and September. From the \
gallery one sees the whole bay, the salt works, the white line of the reef, and on clear days the \
mountains on the other side of the strait, about eighty kilometres away.

In short: measure before you change anything, change one thing at a time, and write down what you \
saw, not what you expected to see. Most faults that look like bad luck turn out to be a step that \
somebody skipped because it had never mattered before.
'''
