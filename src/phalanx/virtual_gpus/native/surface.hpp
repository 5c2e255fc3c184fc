// The functions that Python calls through ctypes: plain C functions, so that one build serves every version of Python.
//
// If a function fails, it returns nonzero, and pxd_error() says why.
#pragma once

#include "comms_record.hpp"
#include "registration.hpp"

namespace phalanx::devices {

inline thread_local std::string last_error;

template <typename Body>
int guarded(Body body) noexcept {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

}  // namespace phalanx::devices

extern "C" {

struct PxdBlock {
  std::int64_t address, size_bytes, requested_bytes, stream;
};

using namespace phalanx::devices;

const char* pxd_error() { return last_error.c_str(); }

int pxd_set_up(int is_cuda, int count, std::int64_t memory_bytes) {
  return guarded([&] { set_up(is_cuda != 0, count, memory_bytes); });
}

// From now on, devices use memory of this driver.
int pxd_use_driver(const char* path) {
  return guarded([&] { driver_memory = new DriverMemory(path); });
}

int pxd_current_device() { return current_device; }
int pxd_set_device(int device) {
  return guarded([&] { current_device = checked_index(static_cast<DeviceIndex>(device)); });
}
int pxd_synchronize(int device) {
  return guarded([&] { Guard().synchronizeDevice(checked_index(static_cast<DeviceIndex>(device))); });
}

std::int64_t pxd_current_stream(int device) { return current_streams[static_cast<std::size_t>(device)]; }
void pxd_set_stream(int device, std::int64_t stream) { current_streams[static_cast<std::size_t>(device)] = stream; }
int pxd_has_stream(std::int64_t stream) { return Streams::exists(stream) ? 1 : 0; }
int pxd_stream_priority(std::int64_t stream) { return Streams::priority(stream); }
void pxd_sleep(double seconds) { streams.push(current_device, current_streams[current_device], seconds); }

int pxd_elapsed_ms(void* start, void* end, double* result) {
  return guarded([&] { *result = Guard().elapsedTime(start, end, current_device); });
}

std::int64_t pxd_blocks(int device, PxdBlock* out, std::int64_t most) {
  std::int64_t count = 0;
  memory[static_cast<std::size_t>(device)].each_block([&](const Block& block) {
    if (count < most)
      out[count] = {reinterpret_cast<std::int64_t>(block.host->data()), static_cast<std::int64_t>(rounded(block.size_bytes)),
                    static_cast<std::int64_t>(block.size_bytes), block.stream};
    ++count;
  });
  return count;
}
void pxd_set_limit(int device, std::int64_t size_bytes) { memory[static_cast<std::size_t>(device)].set_limit(size_bytes); }
void pxd_empty_cache() { allocator.emptyCache(); }
int pxd_resize_storage(void* storage, std::int64_t size_bytes) {
  return guarded([&] { resize_storage(*static_cast<StorageImpl*>(storage), static_cast<std::size_t>(size_bytes)); });
}

void pxd_expose_generators(int is_exposed) { are_generators_exposed = is_exposed != 0; }

void pxd_settle_autograd_threads() { phalanx::settle_autograd_threads(face.type); }

struct PxdComms {
  const char *group, *description, *collective;
  int rank, size, first_rank, rank_stride;
  std::int64_t sequence;
  int is_message, is_async;
};

// Tensors are given by their addresses, `_cdata` in torch. Pass the result to pxd_end_comms() on the same thread.
void* pxd_begin_comms(const PxdComms* comms, void* const* inputs, int num_inputs, void* const* outputs, int num_outputs) {
  void* record = nullptr;
  guarded([&] {
    const auto tensors_of = [](void* const* addresses, int count) {
      std::vector<at::Tensor> tensors;
      for (int at = 0; at < count; ++at)
        tensors.emplace_back(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
            static_cast<c10::TensorImpl*>(addresses[at])));
      return tensors;
    };
    const CommsFacts facts{comms->group,      comms->description, comms->collective,      comms->rank,         comms->size,
                           comms->first_rank, comms->rank_stride, comms->sequence, comms->is_message != 0, comms->is_async != 0};
    record = new CommsRecord(facts, tensors_of(inputs, num_inputs), tensors_of(outputs, num_outputs));
  });
  return record;
}
void pxd_end_comms(void* record) { delete static_cast<CommsRecord*>(record); }

void pxd_when_synchronizing(void (*wait)(int)) { wait_for_pending.store(wait, std::memory_order_release); }
void pxd_add_pending(long change) { num_pending.fetch_add(change, std::memory_order_acq_rel); }

}  // extern "C"
