// Virtual devices for torch, as one translation unit, because torch's headers take most of the build time.
#include "races_surface.hpp"
#include "surface.hpp"
