// The report of a race: the facts, and the text that is made from them.
#pragma once

#include <unistd.h>

#include <climits>
#include <sstream>
#include <string>

#include "races_places.hpp"

namespace phalanx::devices::races {

enum class RaceKind : std::uint8_t { kStreams, kAllocation, kReuse, kCollective, kHost };

inline const char* name_of(RaceKind kind) {
  static constexpr const char* kNames[] = {"streams", "allocation", "reuse", "collective", "host"};
  return kNames[static_cast<int>(kind)];
}

struct Side {
  Site site;
  bool is_write = false;
  std::string tensor;  // "float32 (1024, 3)"
};

struct Report {
  RaceKind kind = RaceKind::kStreams;
  Side here, earlier;
  Site freed, allocated;   // for kReuse: where the earlier tensor was freed and allocated
  bool has_waited = false;
  Site waited;             // the last launch of the earlier stream that the later access has waited for
};

// Streams of collectives have negative numbers.
inline std::string name_of(const StreamKey& key) {
  if (key.stream < 0) return "the stream of collectives";
  return "stream " + std::to_string(key.stream);
}

class Wording {
 public:
  // The device type as torch writes it: "cuda".
  Wording(const Report& report, const std::string& device_type) : report_(report), device_type_(device_type) {}

  // The first line alone is enough for a log.
  std::string text() const {
    std::ostringstream out;
    out << headline() << ": " << tensor() << ", " << line(here().line()) << " and " << line(earlier().line());
    out << "\n  here     " << side(report_.here, true);
    out << "\n  earlier  " << side(report_.earlier, false);
    if (report_.kind == RaceKind::kReuse)
      out << "\n  freed    " << where(report_.freed) << ", without record_stream; allocated at " << where(report_.allocated);
    out << "\n  order    " << order();
    out << "\n  do       " << advice();
    return out.str();
  }

 private:
  const Site& here() const { return report_.here.site; }
  const Site& earlier() const { return report_.earlier.site; }
  std::string device() const { return device_type_ + ":" + std::to_string(earlier().stream.device); }
  std::string module() const { return "torch." + device_type_; }
  std::string tensor() const { return report_.here.tensor.empty() ? "some memory" : report_.here.tensor; }
  std::string who() const { return report_.kind == RaceKind::kHost ? "the host" : name_of(here().stream); }
  const char* does() const { return report_.here.is_write ? "writes" : "reads"; }
  const char* may_do() const { return report_.earlier.is_write ? "write" : "read"; }

  std::string headline() const {
    const std::string begin = "race on " + device() + ": ";
    switch (report_.kind) {
      case RaceKind::kAllocation:
        return begin + who() + " uses memory that was allocated on " + name_of(earlier().stream) + " and does not wait for it";
      case RaceKind::kReuse:
        return begin + "the memory of a freed tensor is used again while " + name_of(earlier().stream) + " may still " +
               may_do() + " it";
      case RaceKind::kCollective:
        return begin + who() + " " + does() + " what " + operation(earlier()) + " " + may_do() + "s, before it waits for it";
      case RaceKind::kHost:
        return begin + "the host " + does() + " pinned memory that a copy " + may_do() + "s, before it waits for it";
      case RaceKind::kStreams: break;
    }
    return begin + who() + " " + does() + " what " + name_of(earlier().stream) + " " + may_do() + "s, and nothing orders them";
  }

  std::string side(const Side& side, bool is_here) const {
    std::string text = operation(side.site) + " " + verb(side, is_here);
    if (!side.tensor.empty()) text += " " + side.tensor;
    if (is_here && report_.kind == RaceKind::kHost)
      text += " on the host";
    else
      text += " on " + name_of(side.site.stream) + (side.site.stream.stream == 0 ? " (the default one)" : "");
    return text + ", " + where(side.site);
  }

  const char* verb(const Side& side, bool is_here) const {
    if (!is_here && report_.kind == RaceKind::kAllocation) return "allocated";
    if (side.is_write) return is_here ? "writes" : "wrote";
    return is_here ? "reads" : "read";
  }

  std::string order() const {
    const std::string other = name_of(earlier().stream);
    if (!report_.has_waited) return who() + " has never waited for " + other;
    if (report_.waited.operation == nullptr) return who() + " has waited for " + other + ", but before that";
    return who() + " has waited for " + other + " only up to " + operation(report_.waited) + ", " + where(report_.waited);
  }

  std::string advice() const {
    const std::string stream = "s being the stream of " + line(earlier().line());
    switch (report_.kind) {
      case RaceKind::kAllocation:
        return "allocate it where it is used (under \"with " + module() + ".stream(s)\"), or let that stream wait: " +
               "s.wait_stream(" + module() + ".current_stream()) " + moment("after ", earlier());
      case RaceKind::kReuse:
        return "call x.record_stream(s) before the last reference to that tensor goes, " + stream + "; or let " +
               name_of(report_.allocated.stream) + " wait for s before it goes";
      case RaceKind::kCollective:
        return "call work.wait() " + moment("before ", here()) + ": async_op=True only starts the collective";
      case RaceKind::kHost:
        return moment("after ", earlier()) + " take event = " + module() + ".current_stream().record_event(), and " +
               moment("before ", here()) + " call event.synchronize(); or copy without non_blocking=True";
      case RaceKind::kStreams: break;
    }
    return moment("before ", here()) + " call " + module() + ".current_stream().wait_stream(s), " + stream +
           "; or take event = s.record_event() " + moment("after ", earlier()) + " and call event.wait() " +
           moment("before ", here());
  }

  // Operations of the backward pass have a line in the forward pass, but do not run there.
  static std::string moment(const char* before_or_after, const Site& site) {
    if (!site.place.is_known() && site.backward_node != nullptr) return before_or_after + std::string("the backward pass");
    return before_or_after + line(site.line());
  }

  static std::string operation(const Site& site) { return site.operation != nullptr ? *site.operation : "an operation"; }

  static std::string where(const Site& site) {
    std::string text;
    if (site.place.is_known()) text = line(site.place) + " in " + *site.place.function;
    if (site.backward_node != nullptr) {
      text += (text.empty() ? "in " : ", in ") + *site.backward_node;
      if (site.forward.is_known()) text += ", the backward of " + line(site.forward) + " in " + *site.forward.function;
    }
    return text.empty() ? "a place that is not known" : text;
  }

  static std::string line(const Place& place) {
    if (!place.is_known()) return "a line that is not known";
    return shortened(*place.file) + ":" + std::to_string(place.line);
  }

  static std::string shortened(const std::string& file) {
    char folder[PATH_MAX];
    if (getcwd(folder, sizeof folder) == nullptr) return file;
    const std::string prefix = std::string(folder) + "/";
    return file.starts_with(prefix) ? file.substr(prefix.size()) : file;
  }

  const Report& report_;
  const std::string& device_type_;
};

// The facts for Python.
class Json {
 public:
  static std::string of(const Report& report, const std::string& text) {
    Json json;
    json.out_ << "{\"kind\":\"" << name_of(report.kind) << "\",\"text\":";
    json.string(text);
    json.side("here", report.here);
    json.side("earlier", report.earlier);
    if (report.kind == RaceKind::kReuse) json.place("freed", report.freed.line());
    json.out_ << "}";
    return json.out_.str();
  }

 private:
  void string(const std::string& text) {
    out_ << '"';
    for (const char byte : text) {
      if (byte == '"' || byte == '\\') {
        out_ << '\\' << byte;
      } else if (static_cast<unsigned char>(byte) < 0x20) {
        static constexpr char kDigits[] = "0123456789abcdef";
        out_ << "\\u00" << kDigits[byte >> 4] << kDigits[byte & 15];
      } else {
        out_ << byte;
      }
    }
    out_ << '"';
  }

  void field(const char* name, const std::string* text) {
    out_ << ",\"" << name << "\":";
    string(text != nullptr ? *text : "");
  }

  void place(const char* name, const Place& place) {
    out_ << ",\"" << name << "\":{\"line\":" << place.line;
    field("file", place.file);
    field("function", place.function);
    out_ << "}";
  }

  void side(const char* name, const Side& side) {
    out_ << ",\"" << name << "\":{\"device\":" << side.site.stream.device << ",\"stream\":" << side.site.stream.stream
         << ",\"is_write\":" << (side.is_write ? "true" : "false");
    field("operation", side.site.operation);
    field("tensor", &side.tensor);
    field("backward_node", side.site.backward_node);
    place("place", side.site.line());
    out_ << "}";
  }

  std::ostringstream out_;
};

}  // namespace phalanx::devices::races
