"""Rows that the driver holds and serves over the network: for engines on other nodes.

There is no setting, so no `Config`.
"""

from hexpo.adapters.stores.served.client import RemoteRowStore
from hexpo.adapters.stores.served.store import ServedRowStore, build

__all__ = ["RemoteRowStore", "ServedRowStore", "build"]
