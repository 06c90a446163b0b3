"""Prints the folders and versions of torch and torchcomms as a CMake list, for the Python that runs this script."""

import importlib.metadata
import importlib.util

names = ("torch", "torchcomms")
folders = [importlib.util.find_spec(name).submodule_search_locations[0] for name in names]
print(";".join([*folders, *map(importlib.metadata.version, names)]))
