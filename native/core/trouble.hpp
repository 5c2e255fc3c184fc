// Why an operation could not be finished. Facts only; the words are made by phalanx.diagnosis.
#pragma once

#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "layout.hpp"

namespace phalanx {

struct Trouble : std::exception {
  Trouble(FaultKind k, int culprit_rank, int reporter_rank, Seq at, std::string what_happened, bool fatal)
      : kind(k), culprit(culprit_rank), reporter(reporter_rank), seq(at), text(std::move(what_happened)),
        is_fatal(fatal) {}
  const char* what() const noexcept override { return text.c_str(); }

  FaultKind kind;
  int culprit;    // -1 when it is nobody or several
  int reporter;   // who noticed
  Seq seq;
  std::string text;
  bool is_fatal;  // the group can't be used any more
};

// Why an operation can't go on in the background.
inline std::string no_thread_text(const std::system_error& error) {
  return "it can't start a thread for operations in the background: " + error.code().message() +
         "; raise the limit of processes (ulimit -u; docker: --pids-limit)";
}

}  // namespace phalanx
