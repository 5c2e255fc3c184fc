"""Build the native part of virtual devices with the user's compiler, once for each version of torch.

library    finds the library, or builds it
recipe     what is built, from what and how, and the name that follows from it
compiling  finds the compiler and runs it
cache      the folder that builds are kept in
progress   what the user sees meanwhile
"""

from phalanx.virtual_gpus.building.library import built_library, find_builds

__all__ = ["built_library", "find_builds"]
