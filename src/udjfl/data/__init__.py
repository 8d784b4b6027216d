"""Data: federations, and the sources they are made from.

`load("dirty-digits")` returns the paper's kind of federation without a download.
`Federation.from_arrays` takes your own arrays. `register_source` adds a source of your own.
"""

from udjfl.data.federate import federate, find_data_mistakes, load
from udjfl.data.federation import Client, Examples, Federation
from udjfl.data.partition import Partition
from udjfl.data.source import Pools, Preparation, Request, Source
from udjfl.data.sources import SOURCES, find_source, register_source

__all__ = [
    "SOURCES",
    "Client",
    "Examples",
    "Federation",
    "Partition",
    "Pools",
    "Preparation",
    "Request",
    "Source",
    "federate",
    "find_data_mistakes",
    "find_source",
    "load",
    "register_source",
]
