#include "tensor_layout.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace phalanx::python {
namespace {

constexpr std::size_t kWords = 32;
using Words = std::array<std::uint64_t, kWords>;

// Reads memory that may not be there: the kernel says so where a load would end the process.
class CarefulReader {
 public:
  CarefulReader() { is_open_ = pipe2(ends_, O_CLOEXEC | O_NONBLOCK) == 0; }
  ~CarefulReader() {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }
  CarefulReader(const CarefulReader&) = delete;

  std::optional<Words> read(std::uint64_t address) {
    Words words{};
    if (!is_open_ || address < 4096 || address % 8 != 0) return std::nullopt;
    if (write(ends_[1], reinterpret_cast<const void*>(address), sizeof words) != ssize_t(sizeof words)) {
      while (::read(ends_[0], words.data(), sizeof words) > 0) {}
      return std::nullopt;
    }
    if (::read(ends_[0], words.data(), sizeof words) != ssize_t(sizeof words)) return std::nullopt;
    return words;
  }

 private:
  int ends_[2] = {-1, -1};
  bool is_open_ = false;
};

// The first place where every sample has what it should have there.
template <class Has>
std::optional<std::size_t> common_place(std::size_t num_samples, const Has& has) {
  for (std::size_t place = 1; place < kWords; ++place) {
    bool is_everywhere = true;
    for (std::size_t i = 0; is_everywhere && i < num_samples; ++i) is_everywhere = has(i, place);
    if (is_everywhere) return place;
  }
  return std::nullopt;
}

}  // namespace

bool TensorLayout::learn(const std::vector<Sample>& samples) {
  is_known_ = false;
  CarefulReader reader;
  for (const std::size_t body_offset : {sizeof(PyObject), sizeof(PyObject) + 8}) {
    std::vector<Words> bodies;
    for (const Sample& sample : samples) {
      const auto* object = reinterpret_cast<const std::byte*>(sample.tensor.ptr());
      const auto words = reader.read(word(object, body_offset));
      if (words) bodies.push_back(*words);
    }
    if (bodies.size() != samples.size() || samples.empty()) continue;
    const auto keys = common_place(samples.size(), [&](std::size_t i, std::size_t at) { return bodies[i][at] == samples[i].keys; });
    std::optional<std::size_t> data, bytes, deleter;
    std::uint64_t torch_deleter = 0;
    std::size_t storage = 1;
    for (; storage < kWords && !(data && bytes && deleter); ++storage) {
      std::vector<Words> storages;
      for (const Words& body : bodies) {
        if (const auto words = reader.read(body[storage])) storages.push_back(*words);
      }
      if (storages.size() != samples.size()) continue;
      data = common_place(samples.size(), [&](std::size_t i, std::size_t at) { return storages[i][at] == samples[i].storage_data; });
      bytes = common_place(samples.size(), [&](std::size_t i, std::size_t at) { return storages[i][at] == samples[i].storage_bytes; });
      // The first sample is torch's memory.
      deleter = common_place(samples.size(), [&](std::size_t i, std::size_t at) {
        return (storages[i][at] == storages[0][at]) == samples[i].is_torch_memory;
      });
      if (deleter) torch_deleter = storages[0][*deleter];
    }
    if (!keys || !data || !bytes || !deleter) continue;
    body_ = body_offset;
    keys_ = *keys * 8;
    storage_ = (storage - 1) * 8;
    data_ = *data * 8;
    bytes_ = *bytes * 8;
    deleter_ = *deleter * 8;
    torch_deleter_ = torch_deleter;
    is_known_ = true;
    return true;
  }
  return false;
}

}  // namespace phalanx::python
