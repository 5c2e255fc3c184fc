// Tensors on GPUs: what a collective runs for them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "plain_text.hpp"
#include "rank_device.hpp"
#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

nb::object& warner() {
  static nb::object& one = *new nb::object;
  return one;
}

std::string name_of(int device) { return device == kHost ? "the CPU" : "cuda:" + std::to_string(device); }

}  // namespace

void warn(const std::string& text) {
  const nb::gil_scoped_acquire gil;
  try {
    if (warner().is_valid()) warner()(text);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("a warning of phalanx");
  }
}

void use_cuda(const nb::str& driver, const std::vector<nb::str>& compilers, const nb::str& cache_folder,
              nb::object warn_function) {
  warner() = std::move(warn_function);
  cuda::use_cuda({path_of(driver), each_of(compilers, path_of), path_of(cache_folder)});
}

void check_packable(const Tensor& tensor) {
  if (cuda::can_be_packed(tensor.view)) [[likely]]
    return;
  throw UsageProblem("a tensor lies in pieces along more than " + std::to_string(cuda::kStridedDims) +
                     " dimensions; pass tensor.contiguous()");
}

cuda::DeviceRank& RankEndpoint::device_rank(int ordinal) {
  auto& rank = device_ranks_[ordinal];
  if (!rank) rank = std::make_unique<cuda::DeviceRank>(*endpoint_, cuda::Gpu::at(ordinal), warn);
  return *rank;
}

std::size_t RankEndpoint::num_open_handles() const {
  std::size_t count = 0;
  for (const auto& [ordinal, rank] : device_ranks_) count += rank->imports().size();
  return count;
}

RankEndpoint::OnDevice RankEndpoint::make_device_operation(Call& call, nb::handle object, const Parts& first, const Parts& second,
                                                           cuda::Form form) {
  const int ordinal = first.tensors.front().device;
  std::vector<cuda::Operand> operands;
  for (const Parts* parts : {&first, &second}) {
    for (const Tensor& tensor : parts->tensors) {
      if (tensor.device != ordinal)
        throw UsageProblem("one tensor is on " + name_of(ordinal) + " and another on " + name_of(tensor.device) +
                           "; give tensors of one device");
      check_packable(tensor);
      cuda::Operand operand{tensor.view, parts->is_read, parts->is_written, {}};
      if (parts->block_bytes != nullptr) operand.block_bytes.assign(parts->block_bytes->begin(), parts->block_bytes->end());
      operands.push_back(std::move(operand));
    }
  }
  call.is_on_device = true;
  try {
    cuda::DeviceRank& rank = device_rank(ordinal);
    auto* stream = static_cast<cuda::CudaStream>(current_stream(object, ordinal));
    auto ready = std::make_shared<const cuda::Moment>(rank.gpu(), stream);
    return std::make_shared<const cuda::DeviceOperation>(rank, std::move(ready), form, std::move(operands));
  } catch (const std::exception& problem) {  // no such GPU, a forked process, a captured stream
    throw UsageProblem(problem.what());
  }
}

std::vector<RankEndpoint::DeviceBatch> RankEndpoint::device_batches(nb::handle objects, const std::vector<Tensor>& tensors,
                                                                    const std::vector<Call>& calls) {
  constexpr std::size_t kMostTensors = 32;  // their description must fit into a slot
  std::vector<DeviceBatch> batches;
  for (const Tensor& tensor : tensors) {
    if (tensor.device != tensors.front().device)
      throw UsageProblem("one tensor is on " + name_of(tensors.front().device) + " and another on " + name_of(tensor.device) +
                         "; give tensors of one device");
  }
  if (tensors.front().device == kHost) return batches;
  for (std::size_t first = 0; first < tensors.size();) {
    Call call = calls[first];
    std::size_t last = first + 1;
    for (; last < tensors.size() && last - first < kMostTensors && calls[last].dtype == call.dtype; ++last) {
      call.count += calls[last].count;
      call.size_bytes += calls[last].size_bytes;
    }
    const std::span<const Tensor> batch(&tensors[first], last - first);
    auto operation = on_device(call, objects[0], {batch, true, true});
    batches.push_back({call, std::move(operation)});
    first = last;
  }
  return batches;
}

}  // namespace phalanx::python
