"""A CUDA driver without a GPU: a library with the functions the engine calls, over host memory."""
