// Lines of the user's program, stored as small numbers.
#pragma once

#include <cctype>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "races_history.hpp"

namespace phalanx::devices::races {

// Strings that live as long as the process, so that a pointer identifies one. Threads may share it.
class Names {
 public:
  const std::string* get(std::string_view name) {
    std::lock_guard guard(lock_);
    return &*names_.emplace(name).first;
  }

  // Call these around a fork.
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }

 private:
  std::mutex lock_;  // guards names_
  std::unordered_set<std::string> names_;
};

inline Names& names = *new Names;

struct Place {
  const std::string* file = nullptr;  // null: not known
  int line = 0;
  const std::string* function = nullptr;

  bool is_known() const { return file != nullptr; }
  bool operator==(const Place&) const = default;
};

// One operation of the forward pass, as autograd numbers them.
struct ForwardNumber {
  std::uint64_t thread = 0, sequence = 0;
  bool is_known = false;
};

// What is known about the caller before the detector is locked.
struct Where {
  Place place;
  const std::string* backward_node = nullptr;  // in the backward pass: the node
  ForwardNumber forward;                       // its number in the forward pass; in the backward pass, that of the node
};

// An operation of one line on one stream.
struct Site {
  StreamKey stream;
  const std::string* operation = nullptr;
  Place place;
  const std::string* backward_node = nullptr;
  Place forward;  // of the backward node
  bool operator==(const Site&) const = default;

  // The line to show first: backward nodes run outside Python, but belong to a line of the forward pass.
  const Place& line() const { return place.is_known() ? place : forward; }
};

struct HashOfSite {
  std::size_t operator()(const Site& site) const {
    std::size_t hash = HashOfStreamKey()(site.stream);
    for (const void* part : {static_cast<const void*>(site.operation), static_cast<const void*>(site.place.file),
                             static_cast<const void*>(site.backward_node), static_cast<const void*>(site.forward.file)})
      hash = hash * 31 + std::hash<const void*>()(part);
    return (hash * 31 + static_cast<std::size_t>(site.place.line)) * 31 + static_cast<std::size_t>(site.forward.line);
  }
};

// Number 0 stands for an unknown object. Not for several threads at a time.
template <typename Thing, typename Hash>
class Numbered {
 public:
  std::uint32_t number_of(const Thing& thing) {
    const auto found = numbers_.find(thing);
    if (found != numbers_.end()) return found->second;
    if (things_.size() >= kMost) return 0;
    things_.push_back(thing);
    return numbers_[thing] = static_cast<std::uint32_t>(things_.size() - 1);
  }
  const Thing& operator[](std::uint32_t number) const { return things_[number]; }

 private:
  static constexpr std::size_t kMost = 1 << 20;

  std::deque<Thing> things_{Thing{}};
  std::unordered_map<Thing, std::uint32_t, Hash> numbers_;
};

using Sites = Numbered<Site, HashOfSite>;
using Tensors = Numbered<std::string, std::hash<std::string>>;  // "float32 (1024, 3)"

// The lines of the latest operations of the forward pass. New ones replace old ones.
class ForwardLines {
 public:
  // Only the first operation with a number can be the one that has got it.
  void remember(const ForwardNumber& number, const std::string* operation, const Place& place) {
    Entry& kept = entry(number);
    if (kept.thread != number.thread || kept.sequence != number.sequence)
      kept = {number.thread, number.sequence, operation, place};
  }

  // Views get numbers too, but are not recorded here. So the names are compared, to find out whether the line is right.
  Place find(const ForwardNumber& number, const std::string& node) {
    const Entry& found = entry(number);
    const bool is_it = found.thread == number.thread && found.sequence == number.sequence && found.operation != nullptr;
    return is_it && plain(*found.operation) == plain(node.substr(0, node.find("Backward"))) ? found.place : Place{};
  }

 private:
  static constexpr std::size_t kMost = 1 << 15;
  struct Entry {
    std::uint64_t thread = 0, sequence = 0;
    const std::string* operation = nullptr;
    Place place;
  };

  // "aten::mse_loss" and "MseLoss" are both "mseloss".
  static std::string plain(const std::string& name) {
    const std::size_t colons = name.rfind("::");
    std::string text;
    for (const char letter : std::string_view(name).substr(colons == std::string::npos ? 0 : colons + 2))
      if (letter != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return text;
  }

  Entry& entry(const ForwardNumber& number) { return entries_[(number.sequence + number.thread * 7919) % kMost]; }

  std::vector<Entry> entries_{kMost};
};

}  // namespace phalanx::devices::races
