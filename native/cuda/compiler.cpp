#include "compiler.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <mutex>

#include "cuda_driver.hpp"
#include "kernel_source.hpp"

namespace phalanx::cuda {
namespace {

using Program = struct ProgramTag*;

struct Compiler {
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Program, int, const char* const*);
  int (*code_bytes)(Program, std::size_t*);
  int (*code)(Program, char*);
  int (*log_bytes)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*destroy)(Program*);
  const char* (*error)(int);
  int major = 0, minor = 0;

  void check(int result, const char* what) const {
    if (result != 0) throw DeviceProblem(std::string("NVRTC can't ") + what + ": " + error(result));
  }
};

template <class Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

Compiler open_compiler() {
  std::string tried;
  for (const std::string& path : cuda_paths().compilers) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    Compiler found{};
    if (library != nullptr && find(library, "nvrtcVersion", found.version) && find(library, "nvrtcCreateProgram", found.create) &&
        find(library, "nvrtcCompileProgram", found.compile) && find(library, "nvrtcGetCUBINSize", found.code_bytes) &&
        find(library, "nvrtcGetCUBIN", found.code) && find(library, "nvrtcGetProgramLogSize", found.log_bytes) &&
        find(library, "nvrtcGetProgramLog", found.log) && find(library, "nvrtcDestroyProgram", found.destroy) &&
        find(library, "nvrtcGetErrorString", found.error) && found.version(&found.major, &found.minor) == 0)
      return found;
    tried += (tried.empty() ? "" : ", ") + path;
  }
  throw DeviceProblem("NVRTC, which compiles the kernels of CUDA collectives and comes with CUDA builds of torch, was not "
                      "found; tried " + (tried.empty() ? "nothing" : tried) + "; set PHALANX_NVRTC to its library");
}

const Compiler& compiler() {
  static const Compiler& one = *new Compiler(open_compiler());
  return one;
}

std::uint64_t digest(const std::string& text) {
  std::uint64_t value = 1469598103934665603u;
  for (const unsigned char letter : text) value = (value ^ letter) * 1099511628211u;
  return value;
}

class Compilation {
 public:
  Compilation(const Compiler& with, const std::vector<std::string>& options) : with_(with) {
    with.check(with.create(&program_, kKernelSource, "phalanx_kernels.cu", 0, nullptr, nullptr), "take the source");
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    const int result = with.compile(program_, static_cast<int>(pointers.size()), pointers.data());
    if (result != 0) throw DeviceProblem(std::string("NVRTC can't compile the kernels: ") + with.error(result) + "\n" + log());
  }
  ~Compilation() { with_.destroy(&program_); }
  Compilation(const Compilation&) = delete;

  std::vector<char> code() const {
    std::size_t bytes = 0;
    with_.check(with_.code_bytes(program_, &bytes), "tell the size of its output");
    std::vector<char> code(bytes);
    with_.check(with_.code(program_, code.data()), "give its output");
    return code;
  }

 private:
  std::string log() const {
    std::size_t bytes = 0;
    if (with_.log_bytes(program_, &bytes) != 0 || bytes == 0) return "";
    std::string text(bytes, '\0');
    with_.log(program_, text.data());
    return text;
  }

  const Compiler& with_;
  Program program_ = nullptr;
};

std::vector<std::string> options_for(const ModuleKey& key, int major, int minor) {
  std::vector<std::string> options = {"--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor), "--std=c++17",
                                      "-default-device", "--fmad=false"};
  if (key.kind != ModuleKind::kReduction) {
    options.emplace_back(key.kind == ModuleKind::kCopy ? "-DPHX_COPY" : "-DPHX_STRIDED");
    return options;
  }
  options.emplace_back("-DPHX_REDUCE");
  options.push_back("-DPHX_TYPE=" + std::to_string(int(key.dtype)));
  options.push_back("-DPHX_OP=" + std::to_string(int(key.op)));
  return options;
}

std::string cache_path(const std::vector<std::string>& options) {
  if (cuda_paths().cache_folder.empty()) return "";
  std::string text = kKernelSource;
  for (const std::string& option : options) text += "\n" + option;
  text += "\n" + std::to_string(compiler().major) + "." + std::to_string(compiler().minor);
  char name[40];
  std::snprintf(name, sizeof name, "/kernels-%016llx.cubin", static_cast<unsigned long long>(digest(text)));
  return cuda_paths().cache_folder + name;
}

// Only what this user wrote: whoever may write there decides what runs on the GPU.
std::vector<char> read_kept(const std::string& path) {
  if (path.empty()) return {};
  // Opened first: between a look at a name and its opening it could become another file.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return {};
  struct stat status{};
  std::vector<char> code;
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() && (status.st_mode & 022) == 0)
    code.resize(static_cast<std::size_t>(status.st_size));
  const bool is_whole = read(descriptor, code.data(), code.size()) == static_cast<ssize_t>(code.size());
  close(descriptor);
  return is_whole ? code : std::vector<char>{};
}

// Written beside its place and put there in one step; without success nothing is lost but time.
void keep(const std::string& path, const std::vector<char>& code) {
  if (path.empty()) return;
  std::string draft = path + ".XXXXXX";
  const int descriptor = mkstemp(draft.data());
  if (descriptor < 0) return;
  const bool is_written = write(descriptor, code.data(), code.size()) == static_cast<ssize_t>(code.size());
  if (close(descriptor) != 0 || !is_written || rename(draft.c_str(), path.c_str()) != 0) unlink(draft.c_str());
}

}  // namespace

std::vector<char> kept_module(const ModuleKey& key, int major, int minor) {
  return read_kept(cache_path(options_for(key, major, minor)));
}

std::vector<char> compile_module(const ModuleKey& key, int major, int minor) {
  const std::vector<std::string> options = options_for(key, major, minor);
  std::vector<char> code = Compilation(compiler(), options).code();
  keep(cache_path(options), code);
  return code;
}

}  // namespace phalanx::cuda
