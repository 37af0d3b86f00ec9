"""A small ledger: accounts, postings and a statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date


@dataclass
class Posting:
    """One movement of money, in cents."""

    day: date
    amount: int
    note: str = ""


@dataclass
class Account:
    """A named list of postings."""

    name: str
    postings: list[Posting] = field(default_factory=list)

    def deposit(self, day: date, amount: int, note: str = "") -> None:
        if amount <= 0:
            raise ValueError("a deposit must be above zero")
        self.postings.append(Posting(day, amount, note))

    def withdraw(self, day: date, amount: int, note: str = "") -> None:
        if amount <= 0:
            raise ValueError("a withdrawal must be above zero")
        if amount > self.balance():
            raise ValueError(f"{self.name} has only {self.balance()} cents")
        self.postings.append(Posting(day, -amount, note))

    def balance(self) -> int:
        return sum(posting.amount for posting in self.postings)

    def between(self, start: date, end: date) -> list[Posting]:
        return [posting for posting in self.postings if start <= posting.day <= end]


def transfer(source: Account, target: Account, day: date, amount: int) -> None:
    source.withdraw(day, amount, f"to {target.name}")
    target.deposit(day, amount, f"from {source.name}")


def statement(account: Account, start: date, end: date) -> str:
    lines = [f"Statement of {account.name}, {start} to {end}"]
    total = 0
    for posting in account.between(start, end):
        total += posting.amount
        lines.append(f"{posting.day}  {posting.amount / 100:10.2f}  {posting.note}")
    lines.append(f"Change: {total / 100:.2f}")
    lines.append(f"Balance: {account.balance() / 100:.2f}")
    return "\n".join(lines)
