"""Virtual devices as a device type of their own: "virtual:3", and the module torch.virtual."""

from phalanx.virtual_gpus.torch_virtual.installation import install

__all__ = ["install"]
