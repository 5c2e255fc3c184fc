// Why an operation could not be finished. Facts only; phalanx.diagnosis turns them into words.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "faults.hpp"
#include "segment.hpp"

namespace phalanx {

struct Trouble : std::exception {
  Trouble(FaultKind k, int culprit_rank, int reporter_rank, Seq at, FaultDetail more, bool fatal)
      : kind(k), culprit(culprit_rank), reporter(reporter_rank), seq(at), detail(std::move(more)), is_fatal(fatal) {}
  const char* what() const noexcept override { return detail.text.c_str(); }

  FaultKind kind;
  int culprit;    // -1 when it is nobody or several
  int reporter;   // the rank that noticed it
  Seq seq;
  FaultDetail detail;
  bool is_fatal;  // the group can't be used any more
};

inline FaultDetail shortage_of(const OutOfMemory& error) {
  return {.wanted_bytes = error.needed_bytes, .found_bytes = error.available_bytes};
}

// For people to read: what the library of C++ throws says too little of memory.
inline std::string words_of(const std::exception& error) {
  const bool is_shortage = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return is_shortage ? "there is not enough memory for this operation" : error.what();
}

// Why an operation can't go on in the background.
inline std::string no_thread_text(const std::system_error& error) {
  return "it can't start a thread for operations in the background: " + error.code().message() +
         "; raise the limit of processes (ulimit -u; docker: --pids-limit)";
}

}  // namespace phalanx
