// Modules and launches of the simulated driver: a module is a shared library, and every thread of a grid is a call.
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "simulator.hpp"

namespace simulator {
namespace {

struct Function {
  void (*launch)(const void* parameters, const unsigned* grid, const unsigned* block);
  std::size_t parameter_bytes;
};

// An image comes without its length; in the libraries that are made here the table of sections is last.
std::size_t image_bytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_type != ET_DYN) return 0;
  return header.e_shoff + std::size_t(header.e_shnum) * header.e_shentsize;
}

// The file has a name of its own while it is loaded: dlopen() takes what has the same name for the same library.
void* load(const void* image, std::size_t bytes) {
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/simulated-module-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return nullptr;
  const bool is_written = write(file, image, bytes) == static_cast<ssize_t>(bytes);
  close(file);
  void* module = is_written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path.c_str());
  return module;
}

bool is_launchable(const unsigned* grid, const unsigned* block) {
  for (int axis = 0; axis < 3; ++axis)
    if (grid[axis] == 0 || block[axis] == 0) return false;
  return grid[1] <= 65535 && grid[2] <= 65535 && block[0] * block[1] * block[2] <= 1024;
}

}  // namespace
}  // namespace simulator

using namespace simulator;

EXPORT Result cuModuleLoadData(void** module, const void* image) {
  if (const Result why = usable(); why != kSuccess) return why;
  if (current_context() == nullptr) return kInvalidContext;
  const std::size_t bytes = image_bytes(image);
  *module = bytes != 0 ? load(image, bytes) : nullptr;
  return *module != nullptr ? kSuccess : kInvalidImage;
}

EXPORT Result cuModuleGetFunction(Function** function, void* module, const char* name) {
  if (const Result why = usable(); why != kSuccess) return why;
  void* launch = dlsym(module, name);
  void* parameter_bytes = dlsym(module, (std::string(name) + "_parameter_bytes").c_str());
  if (launch == nullptr || parameter_bytes == nullptr) return kNotFound;
  *function = new Function{reinterpret_cast<decltype(Function::launch)>(launch),
                           reinterpret_cast<unsigned long (*)()>(parameter_bytes)()};
  return kSuccess;
}

EXPORT Result cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned, void* handle, void** parameters, void**) {
  if (const Result why = usable(); why != kSuccess) return why;
  Stream* const stream = stream_at(handle);
  if (current_context() == nullptr) return kInvalidContext;
  if (function == nullptr || stream == nullptr) return kInvalidHandle;
  struct Shape { unsigned grid[3], block[3]; };
  const Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
  if (!is_launchable(shape.grid, shape.block)) return kInvalidValue;
  // Kernels have one parameter; the caller may use its memory again.
  const auto* begin = static_cast<const char*>(parameters[0]);
  submit(*stream, [=, copy = std::vector<char>(begin, begin + function->parameter_bytes)] {
    function->launch(copy.data(), shape.grid, shape.block);
  });
  return kSuccess;
}
