"""Build the native part of virtual devices with the user's compiler, once for each version of torch.

library    finds the library, or builds it
recipe     the sources, flags and name of a build
compiling  finds the compiler and runs it
cache      the folder of finished builds
progress   what the user sees during a build
"""

from phalanx.virtual_gpus.building.library import built_library, find_builds

__all__ = ["built_library", "find_builds"]
