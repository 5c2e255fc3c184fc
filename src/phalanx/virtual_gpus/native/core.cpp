// Virtual devices for torch, as one translation unit: torch's headers take most of the time a build takes.
#include "races_surface.hpp"
#include "surface.hpp"
