"""Clients, and fairness among them. A client is an API key, or an address if the server has no keys."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Generic, TypeVar

__all__ = ["FairQueue", "current_client"]

Item = TypeVar("Item")

# The client whose request the current task answers.
current_client: ContextVar[str] = ContextVar("current_client", default="")


class FairQueue(Generic[Item]):
    """Items that wait: clients take turns, and each client's items leave in the order in which they came."""

    def __init__(self) -> None:
        self._by_client: dict[str, dict[Item, None]] = {}  # in the order of their turns; no client without items

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def push(self, client: str, item: Item) -> None:
        self._by_client.setdefault(client, {})[item] = None

    def first(self) -> Item | None:
        """Returns the item whose turn it is, or None. It stays in the queue."""
        for items in self._by_client.values():
            return next(iter(items))
        return None

    def pop(self) -> None:
        """Removes first(), after which the turn is the next client's."""
        client, items = next(iter(self._by_client.items()))
        del self._by_client[client], items[next(iter(items))]
        if items:
            self._by_client[client] = items  # behind the others

    def remove(self, client: str, item: Item) -> None:
        """Removes an item, if it waits."""
        items = self._by_client.get(client, {})
        items.pop(item, None)
        if not items:
            self._by_client.pop(client, None)
