// The simulated NVRTC: g++ compiles the kernels for the host, with what CUDA has built in put before them.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "simulator.hpp"

extern char** environ;

namespace {

using simulator::Result;
namespace files = std::filesystem;

constexpr Result kInvalidOption = 5, kCompilationFailed = 6, kInternalError = 11;

// Threads that run at the same time on a device run one after the other here: kernels must not wait for each other.
constexpr char kPrelude[] = R"(
#define __global__
#define __device__
#define __forceinline__ inline
struct SimulatedIndex { unsigned x, y, z; };
static thread_local SimulatedIndex blockIdx, threadIdx, blockDim, gridDim;
static inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
static inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
static inline long long __double_as_longlong(double d) { return __builtin_bit_cast(long long, d); }
static inline double __longlong_as_double(long long i) { return __builtin_bit_cast(double, i); }

template <class Body>
static void simulated_run(const unsigned* grid, const unsigned* block, const Body& body) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  for (unsigned by = 0; by < grid[1]; ++by)
    for (unsigned bx = 0; bx < grid[0]; ++bx)
      for (unsigned tx = 0; tx < block[0]; ++tx) {
        blockIdx = {bx, by, 0};
        threadIdx = {tx, 0, 0};
        body();
      }
}

#define SIMULATED_EXPORT extern "C" __attribute__((visibility("default")))
#define PHX_KERNEL(name, Parameters)                                                                     \
  static void name##_in_thread(const Parameters& arguments);                                                  \
  SIMULATED_EXPORT unsigned long name##_parameter_bytes() { return sizeof(Parameters); }                 \
  SIMULATED_EXPORT void name(const void* parameters, const unsigned* grid, const unsigned* block) {      \
    const Parameters& arguments = *static_cast<const Parameters*>(parameters);                                \
    simulated_run(grid, block, [&] { name##_in_thread(arguments); });                                         \
  }                                                                                                      \
  static void name##_in_thread(const Parameters& arguments)
#line 1 "kernels.cu"
)";

struct Program {
  std::string source, log;
  std::vector<char> code;
};

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(files::temp_directory_path() / "simulated-nvrtc-XXXXXX") {
    std::string name = path_.string();
    if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() { files::remove_all(path_); }
  std::string file(const char* name) const { return path_ / name; }

 private:
  files::path path_;
};

std::vector<char> contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int run(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t pid = 0;
  int status = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) return -1;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return status;
}

Result compile(Program& program, const std::vector<std::string>& options) {
  const TemporaryFolder folder;
  const std::string source = folder.file("kernels.cpp"), code = folder.file("kernels.so"), log = folder.file("log");
  std::ofstream(source) << kPrelude << program.source;
  // No contraction: that is what --fmad=false says. Bytes are looked at as numbers of several types.
  std::vector<std::string> command = {"g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-ffp-contract=off",
                                      "-fno-strict-aliasing", "-fvisibility=hidden", "-o", code, source};
#ifdef __x86_64__
  command.push_back("-mno-80387");  // or g++ moves floats through registers that quiet NaNs
#endif
  for (const std::string& option : options) {
    if (option.rfind("-D", 0) == 0) command.push_back(option);
    else if (option.rfind("-", 0) != 0) return kInvalidOption;
  }
  const int status = run(command, log);
  const std::vector<char> text = contents(log);
  program.log.assign(text.begin(), text.end());
  if (status == -1) program.log = "the simulated NVRTC could not run g++";
  if (status != 0) return kCompilationFailed;
  program.code = contents(code);
  return program.code.empty() ? kInternalError : 0;
}

}  // namespace

// Never a version of the real one: what was compiled here must not be taken for its output. Changes with the prelude.
EXPORT Result nvrtcVersion(int* major, int* minor) {
  *major = 0;
  *minor = static_cast<int>(std::hash<std::string>()(kPrelude) % 1000000);
  return 0;
}

EXPORT Result nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                                 const char* const*) {
  *program = new Program{source, "", {}};
  return 0;
}

EXPORT Result nvrtcCompileProgram(Program* program, int num_options, const char* const* options) {
  try {
    return compile(*program, {options, options + num_options});
  } catch (const std::exception& error) {
    program->log = error.what();
    return kInternalError;
  }
}

EXPORT Result nvrtcGetCUBINSize(Program* program, std::size_t* bytes) {
  *bytes = program->code.size();
  return 0;
}

EXPORT Result nvrtcGetCUBIN(Program* program, char* code) {
  std::memcpy(code, program->code.data(), program->code.size());
  return 0;
}

EXPORT Result nvrtcGetProgramLogSize(Program* program, std::size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}

EXPORT Result nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}

EXPORT Result nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}

EXPORT const char* nvrtcGetErrorString(Result result) {
  switch (result) {
    case 0: return "NVRTC_SUCCESS";
    case kInvalidOption: return "NVRTC_ERROR_INVALID_OPTION";
    case kCompilationFailed: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}
