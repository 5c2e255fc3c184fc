"""Virtual devices as a device type of their own: "virtual:3", and the module torch.virtual."""

from phalanx.devices.own_face.installation import install

__all__ = ["install"]
