"""Virtual GPUs: devices of torch that compute on the CPU and behave as CUDA devices do.

set_up         phalanx.virtual_devices(): check, build, load, install
request        the arguments of that call
refusals       why a process cannot have virtual devices
building       compiles the library with the user's compiler, and keeps it
library        the library as Python calls it; its sources are in native
torch_virtual  torch.virtual: devices of type "virtual"
torch_cuda     torch.cuda on devices of type "cuda"
stream_order   how collectives wait for a device's other work
"""
