// The test framework: TEST(name) { CHECK(...); }, one executable per file, run in the order they are written.
//
// An executable takes a part of a name as its argument and then runs only the tests that have it.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../core/platform.hpp"
#include "../core/trouble.hpp"

namespace check {

// No test waits longer than this in all: then the process ends by SIGALRM, and the tests fail.
inline constexpr unsigned kTestSeconds = 300;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline std::string place(const char* file, int line) {
  const char* slash = std::strrchr(file, '/');
  return std::string(slash != nullptr ? slash + 1 : file) + ":" + std::to_string(line) + ": ";
}

template <class A, class B>
void require_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << place(file, line) << text << ", but they are " << a << " and " << b;
  throw Failure(out.str());
}

inline double seconds_since(std::int64_t start_ns) { return double(phalanx::monotonic_ns() - start_ns) * 1e-9; }

// What went wrong, in words; empty if nothing did.
template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
    return "";
  } catch (const Skipped&) {
    throw;
  } catch (const phalanx::Trouble& trouble) {
    return "trouble of kind " + std::to_string(int(trouble.kind)) + ", culprit " + std::to_string(trouble.culprit) +
           ", reporter " + std::to_string(trouble.reporter) + ": " + trouble.detail.text;
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline int run_all(const char* part) {
  int num_failed = 0;
  for (const Test& test : tests()) {
    if (std::strstr(test.name, part) == nullptr) continue;
    const std::int64_t start = phalanx::monotonic_ns();
    std::printf("%s ...", test.name);
    std::fflush(stdout);
    alarm(kTestSeconds);
    try {
      const std::string problem = problem_of(test.body);
      num_failed += !problem.empty();
      std::printf(" %s in %.2f s%s%s\n", problem.empty() ? "ok" : "FAILED", seconds_since(start),
                  problem.empty() ? "" : ": ", problem.c_str());
    } catch (const Skipped& skipped) {
      std::printf(" skipped: %s\n", skipped.what());
    }
    alarm(0);
    std::fflush(stdout);
  }
  return num_failed == 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                           \
  static void test_##name();                                 \
  static const check::Registration name##_(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) throw check::Failure(check::place(__FILE__, __LINE__) + #condition);    \
  } while (false)

#define CHECK_EQUAL(a, b) check::require_equal(a, b, #a " should equal " #b, __FILE__, __LINE__)

int main(int argc, char** argv) { return check::run_all(argc > 1 ? argv[1] : ""); }
