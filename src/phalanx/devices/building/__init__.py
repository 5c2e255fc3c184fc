"""Build the native part of virtual devices with the user's compiler, once per version of torch.

recipe    what is built, from what and how, and the name that follows from it
compiler  which compiler there is
cache     the folder builds are kept in: whose it is, who may build now, what may go
compiling the one run of the compiler
library   all of it together: find the library or build it
progress  what the user sees meanwhile
"""

from phalanx.devices.building.library import State, built_library, look_around

__all__ = ["State", "built_library", "look_around"]
