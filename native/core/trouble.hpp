// Why an operation could not be finished. Facts only; the words are made by phalanx.diagnosis.
#pragma once

#include <exception>
#include <string>

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

}  // namespace phalanx
