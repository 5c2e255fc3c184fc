// Each collective: check the arguments, describe the call, hand an action to the lane.
#include <nanobind/stl/string.h>

#include <cstring>
#include <limits>

#include "../core/hosts/collectives.hpp"
#include "overlap.hpp"
#include "places.hpp"
#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

// The collectives of a group over several hosts have the same names.
template <class Run>
void on_group(Endpoint& endpoint, HostGroup* hosts, const Run& run) {
  if (hosts == nullptr) [[likely]]
    return run(endpoint);
  run(*hosts);
}

std::string count_text(const Tensor& tensor) { return std::to_string(tensor.view.count); }

void check_reducible(const Call& call) {
  if ((call.op == ReduceOp::kSum && call.dtype <= DType::kComplex128) || is_reducible(call.dtype, call.op)) [[likely]]
    return;
  throw UsageProblem(std::string(operation_name(call.operation)) + " does not support " + reduce_op_name(call.op) +
                     " on " + dtype_name(call.dtype));
}

// A word such as "max", an object of torch, or what ReduceOp.premul_sum() returns.
[[gnu::cold]] void read_reduction(Call& call, nb::handle spelling) {
  try {
    const nb::object read = nb::module_::import_("phalanx.reductions").attr("as_reduce_op")(spelling);
    if (PyLong_Check(read.ptr())) {
      call.op = static_cast<ReduceOp>(nb::cast<int>(read));
    } else {
      call.op = ReduceOp::kPremulSum;
      call.factor = nb::cast<double>(read.attr("factor"));
    }
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    throw UsageProblem(utf8_of(nb::str(error.value())));
  }
}

void set_reduction(Call& call, const ReduceArgument& how) {
  call.op = how.op;
  if (how.spelling.is_valid()) [[unlikely]]
    read_reduction(call, how.spelling);
}

void check_same_dtype(const Tensor& a, const Tensor& b, const char* text) {
  if (a.view.dtype == b.view.dtype) return;
  throw UsageProblem(std::string(text) + " have different dtypes: " + dtype_name(a.view.dtype) + " and " +
                     dtype_name(b.view.dtype));
}

void check_list_length(const std::vector<Tensor>& list, int num_ranks, const char* role) {
  if (list.size() == std::size_t(num_ranks)) return;
  throw UsageProblem(std::string(role) + " has " + std::to_string(list.size()) + " tensors, but the group has " +
                     std::to_string(num_ranks) + " ranks; give one tensor per rank");
}

// Equal sizes are compared as a count, unequal ones as a digest of all.
void describe_sizes(const std::vector<Tensor>& list, Call& call) {
  bool is_even = true;
  std::uint64_t digest = 1469598103934665603u;
  for (const Tensor& tensor : list) {
    is_even = is_even && tensor.view.count == list.front().view.count;
    digest = (digest ^ tensor.view.count) * 1099511628211u;
  }
  call.count = is_even ? list.front().view.count : digest | 1ull << 63;
}

void check_list_dtypes(const std::vector<Tensor>& list, const Tensor& other, const char* text) {
  for (const Tensor& tensor : list) check_same_dtype(tensor, other, text);
}

PerRank<std::size_t> equal_blocks(std::size_t bytes, int num_ranks) {
  PerRank<std::size_t> blocks;
  for (int rank = 0; rank < num_ranks; ++rank) blocks.push_back(bytes);
  return blocks;
}

bool are_alike(const PerRank<std::size_t>& blocks) {
  return std::ranges::all_of(blocks, [&](std::size_t bytes) { return bytes == blocks[0]; });
}

// Bytes per rank of a tensor split along its first dimension.
PerRank<std::size_t> split_bytes(const Tensor& tensor, nb::handle splits, int num_ranks, const char* role) {
  const std::uint64_t rows = tensor.num_dims == 0 ? 1 : tensor.shape[0];
  const std::size_t row = rows == 0 ? 0 : tensor.view.bytes() / rows;
  if (splits.is_none() || nb::len(splits) == 0) {
    if (rows % std::uint64_t(num_ranks) != 0)
      throw UsageProblem(std::string(role) + " has " + std::to_string(rows) + " rows, which " +
                         std::to_string(num_ranks) + " ranks can't share equally; give split sizes");
    return equal_blocks(rows / std::uint64_t(num_ranks) * row, num_ranks);
  }
  PerRank<std::size_t> bytes;
  std::uint64_t total = 0;
  for (nb::handle item : splits) {
    if (!PyLong_Check(item.ptr())) throw UsageProblem(std::string(role) + " split sizes must be whole numbers");
    const long long size = PyLong_AsLongLong(item.ptr());
    if (size == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
    if (size < 0) throw UsageProblem(std::string(role) + " split sizes must not be negative");
    bytes.push_back(std::size_t(size) * row);
    // A sum that wrapped round could be the right one.
    if (__builtin_add_overflow(total, std::uint64_t(size), &total)) total = std::numeric_limits<std::uint64_t>::max();
  }
  if (bytes.size() != std::size_t(num_ranks))
    throw UsageProblem(std::string(role) + " has " + std::to_string(bytes.size()) + " split sizes for " +
                       std::to_string(num_ranks) + " ranks");
  if (total != rows)
    throw UsageProblem(std::string("Split sizes doesn't match total dim 0 size: ") + role + " splits add up to " +
                       std::to_string(total) + ", the tensor has " + std::to_string(rows) + " rows");
  return bytes;
}

}  // namespace

nb::object RankEndpoint::all_reduce(const Arguments& args) {
  const nb::handle object = args.required(0);
  const ReduceArgument how = args.reduction(1);
  const double timeout = args.seconds(2);
  const bool is_async = args.flag(3);
  return collective(Operation::kAllReduce, object, nb::handle(), timeout, is_async, [&](Call& call) {
    const Tensor tensor = view_tensor(object, "tensor", Use::kWrite);
    describe(tensor, call);
    set_reduction(call, how);
    check_reducible(call);
    auto device = on_device(call, object, {{&tensor, 1}, true, true});
    return [call, hosts = hosts_.get(), place = Place(tensor), symmetric = symmetric_.find(tensor.view.data, tensor.view.bytes()),
            device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      place.load();
      on_group(e, hosts, [&](auto& group) { phalanx::all_reduce(group, call, place.data, place.piece ? SymmetricPlace{} : symmetric); });
      place.store();
    };
  });
}

nb::object RankEndpoint::all_reduce_coalesced(const Arguments& args) {
  const nb::handle objects = args.required(0);
  const ReduceArgument how = args.reduction(1);
  const double timeout = args.seconds(2);
  const bool is_async = args.flag(3);
  return collective(Operation::kAllReduce, objects, nb::handle(), timeout, is_async, [&](Call& call) {
    const std::vector<Tensor> tensors = view_tensors(objects, "tensors", Use::kWrite);
    if (tensors.empty()) throw UsageProblem("the list of tensors is empty");
    set_reduction(call, how);
    std::vector<Call> calls;
    std::size_t all_bytes = 0;
    for (const Tensor& tensor : tensors) {
      describe(tensor, call);
      check_reducible(call);
      calls.push_back(call);
      all_bytes += call.size_bytes;
    }
    call.size_bytes = all_bytes;
    auto batches = device_batches(objects, tensors, calls);
    call.is_on_device = !batches.empty();
    const Apart apart = find_shared_blocks({}, {tensors}, rank());  // of several types
    return [hosts = hosts_.get(), calls = std::move(calls), places = Places(tensors, apart.outputs), batches = std::move(batches)](Endpoint& e) {
      for (const DeviceBatch& batch : batches) batch.operation->run(e, batch.call);
      if (!batches.empty()) return;
      constexpr std::size_t kBatchBytes = 256 * 1024;  // small neighbours of one type travel together
      places.load();
      for (std::size_t first = 0; first < calls.size();) {
        Call batch = calls[first];
        std::size_t last = first + 1, bytes = places.bytes[first];
        for (; last < calls.size() && calls[last].dtype == batch.dtype && bytes + places.bytes[last] <= kBatchBytes; ++last) {
          bytes += places.bytes[last];
          batch.count += calls[last].count;
        }
        if (last == first + 1) {
          on_group(e, hosts, [&](auto& group) { phalanx::all_reduce(group, batch, places.data[first], {}); });
        } else {
          std::vector<std::byte> flat(bytes);
          std::byte* at = flat.data();
          for (std::size_t i = first; i < last; at += places.bytes[i++]) std::memcpy(at, places.data[i], places.bytes[i]);
          on_group(e, hosts, [&](auto& group) { phalanx::all_reduce(group, batch, flat.data(), {}); });
          at = flat.data();
          for (std::size_t i = first; i < last; at += places.bytes[i++]) std::memcpy(places.data[i], at, places.bytes[i]);
        }
        first = last;
      }
      places.store();
    };
  });
}

nb::object RankEndpoint::reduce(const Arguments& args) {
  const nb::handle object = args.required(0);
  const int root = args.integer(1, 0);
  const ReduceArgument how = args.reduction(2);
  const double timeout = args.seconds(3);
  const bool is_async = args.flag(4);
  return collective(Operation::kReduce, object, nb::handle(), timeout, is_async, [&](Call& call) {
    const Tensor tensor = view_tensor(object, "tensor", root == rank() ? Use::kWrite : Use::kRead);
    describe(tensor, call);
    set_reduction(call, how);
    check_root(root);
    check_reducible(call);
    call.root = root;
    auto device = on_device(call, object, {{&tensor, 1}, true, root == rank()});
    return [call, hosts = hosts_.get(), is_root = root == rank(), place = Place(tensor), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      place.load();
      on_group(e, hosts, [&](auto& group) { reduce_to_root(group, call, place.data); });
      if (is_root) place.store();
    };
  });
}

nb::object RankEndpoint::broadcast(const Arguments& args) {
  const nb::handle object = args.required(0);
  const int root = args.integer(1, 0);
  const double timeout = args.seconds(2);
  const bool is_async = args.flag(3);
  return collective(Operation::kBroadcast, object, nb::handle(), timeout, is_async, [&](Call& call) {
    const Tensor tensor = view_tensor(object, "tensor", root == rank() ? Use::kRead : Use::kWrite);
    describe(tensor, call);
    check_root(root);
    call.root = root;
    auto device = on_device(call, object, {{&tensor, 1}, root == rank(), root != rank()});
    return [call, hosts = hosts_.get(), is_root = root == rank(), place = Place(tensor), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      if (is_root) place.load();
      on_group(e, hosts, [&](auto& group) { phalanx::broadcast(group, call, place.data, place.bytes); });
      if (!is_root) place.store();
    };
  });
}

nb::object RankEndpoint::all_gather(const Arguments& args) {
  const nb::handle objects = args.required(0), object = args.required(1);
  const double timeout = args.seconds(2);
  const bool is_async = args.flag(3);
  return collective(Operation::kAllGather, objects, object, timeout, is_async, [&](Call& call) {
    const Tensor input = view_tensor(object, "input", Use::kRead);
    const std::vector<Tensor> outputs = view_tensors(objects, "outputs", Use::kWrite);
    describe(input, call);
    call.is_uneven = true;
    check_list_length(outputs, num_ranks(), "outputs");
    check_list_dtypes(outputs, input, "outputs and input");
    const Tensor& own = outputs[std::size_t(rank())];
    if (own.view.count != input.view.count)
      throw UsageProblem("outputs[" + std::to_string(rank()) + "] has " + count_text(own) +
                         " elements, but this rank's input has " + count_text(input));
    describe_sizes(outputs, call);
    auto device = on_device(call, object, {{&input, 1}, true, false}, {outputs, false, true});
    const Apart apart = find_shared({{&input, 1}}, {outputs}, rank());
    return [call, hosts = hosts_.get(), in = Place(input, apart.inputs), out = Places(outputs, apart.outputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::all_gather(group, call, in.data, out.data.data(), out.bytes.data()); });
      out.store();
    };
  });
}

nb::object RankEndpoint::all_gather_single(const Arguments& args) {
  const nb::handle output_object = args.required(0), object = args.required(1);
  const double timeout = args.seconds(2);
  const bool is_async = args.flag(3);
  return collective(Operation::kAllGather, output_object, object, timeout, is_async, [&](Call& call) {
    const Tensor input = view_tensor(object, "input", Use::kRead);
    const Tensor output = view_tensor(output_object, "output", Use::kWrite);
    const int n = num_ranks();
    describe(input, call);
    check_same_dtype(output, input, "output and input");
    if (output.view.count != input.view.count * std::uint64_t(n))
      throw UsageProblem("output has " + count_text(output) + " elements; " + std::to_string(n) +
                         " ranks give " + std::to_string(input.view.count * std::uint64_t(n)));
    auto device = on_device(call, object, {{&input, 1}, true, false}, {{&output, 1}, false, true}, cuda::Form::kSingle);
    const Apart apart = find_shared({{&input, 1}}, {{&output, 1}, nullptr, input.view.bytes()}, rank());
    return [call, hosts = hosts_.get(), in = Place(input, apart.inputs), out = Places(output, equal_blocks(input.view.bytes(), n)), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::all_gather(group, call, in.data, out.data.data(), out.bytes.data()); });
      out.store();
    };
  });
}

nb::object RankEndpoint::gather(const Arguments& args) {
  const nb::handle objects = args.optional(0), object = args.required(1);
  const int root = args.integer(2, 0);
  const double timeout = args.seconds(3);
  const bool is_async = args.flag(4);
  return collective(Operation::kGather, objects, object, timeout, is_async, [&](Call& call) {
    const Tensor input = view_tensor(object, "input", Use::kRead);
    describe(input, call);
    check_root(root);
    call.root = root;
    std::vector<Tensor> outputs;
    if (rank() == root) {
      if (objects.is_none() || nb::len(objects) == 0)
        throw UsageProblem("outputs must be specified on the destination rank");
      outputs = view_tensors(objects, "outputs", Use::kWrite);
      check_list_length(outputs, num_ranks(), "outputs");
      check_list_dtypes(outputs, input, "outputs and input");
      for (const Tensor& output : outputs) {
        if (output.view.count != input.view.count)
          throw UsageProblem("outputs must each have " + count_text(input) + " elements, as the input has; one has " +
                             count_text(output));
      }
    } else if (!objects.is_none() && nb::len(objects) != 0) {
      throw UsageProblem("outputs must NOT be specified on non-destination ranks");
    }
    auto device = on_device(call, object, {{&input, 1}, true, false}, {outputs, false, true});
    const Apart apart = find_shared({{&input, 1}}, {outputs}, rank());
    return [call, hosts = hosts_.get(), in = Place(input, apart.inputs), out = Places(outputs, apart.outputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::gather(group, call, in.data, out.data.data(), in.bytes); });
      out.store();
    };
  });
}

nb::object RankEndpoint::scatter(const Arguments& args) {
  const nb::handle object = args.required(0), objects = args.optional(1);
  const int root = args.integer(2, 0);
  const double timeout = args.seconds(3);
  const bool is_async = args.flag(4);
  return collective(Operation::kScatter, object, objects, timeout, is_async, [&](Call& call) {
    const Tensor output = view_tensor(object, "output", Use::kWrite);
    describe(output, call);
    check_root(root);
    call.root = root;
    std::vector<Tensor> inputs;
    if (rank() == root) {
      if (objects.is_none() || nb::len(objects) == 0)
        throw UsageProblem("inputs must be specified on the source rank");
      inputs = view_tensors(objects, "inputs", Use::kRead);
      check_list_length(inputs, num_ranks(), "inputs");
      check_list_dtypes(inputs, output, "inputs and output");
      for (const Tensor& input : inputs) {
        if (input.view.count != output.view.count)
          throw UsageProblem("inputs must each have " + count_text(output) + " elements, as the output has; one has " +
                             count_text(input));
      }
    } else if (!objects.is_none() && nb::len(objects) != 0) {
      throw UsageProblem("inputs must NOT be specified on non-source ranks");
    }
    auto device = on_device(call, object, {{&output, 1}, false, true}, {inputs, true, false});
    const Apart apart = find_shared({inputs}, {{&output, 1}}, rank());
    return [call, hosts = hosts_.get(), out = Place(output), in = Places(inputs, apart.inputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::scatter(group, call, in.data.data(), out.data, out.bytes); });
      out.store();
    };
  });
}

nb::object RankEndpoint::reduce_scatter(const Arguments& args) {
  const nb::handle object = args.required(0), objects = args.required(1);
  const ReduceArgument how = args.reduction(2);
  const double timeout = args.seconds(3);
  const bool is_async = args.flag(4);
  return collective(Operation::kReduceScatter, object, objects, timeout, is_async, [&](Call& call) {
    const Tensor output = view_tensor(object, "output", Use::kWrite);
    const std::vector<Tensor> inputs = view_tensors(objects, "inputs", Use::kRead);
    describe(output, call);
    call.is_uneven = true;
    set_reduction(call, how);
    check_list_length(inputs, num_ranks(), "inputs");
    check_list_dtypes(inputs, output, "inputs and output");
    check_reducible(call);
    const Tensor& own = inputs[std::size_t(rank())];
    if (own.view.count != output.view.count)
      throw UsageProblem("inputs[" + std::to_string(rank()) + "] has " + count_text(own) +
                         " elements, but this rank's output has " + count_text(output));
    describe_sizes(inputs, call);
    auto device = on_device(call, object, {{&output, 1}, false, true}, {inputs, true, false});
    const Apart apart = find_shared({inputs}, {{&output, 1}}, rank());
    return [call, hosts = hosts_.get(), out = Place(output), in = Places(inputs, apart.inputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::reduce_scatter(group, call, in.data.data(), out.data, in.bytes.data()); });
      out.store();
    };
  });
}

nb::object RankEndpoint::reduce_scatter_single(const Arguments& args) {
  const nb::handle object = args.required(0), input_object = args.required(1);
  const ReduceArgument how = args.reduction(2);
  const double timeout = args.seconds(3);
  const bool is_async = args.flag(4);
  return collective(Operation::kReduceScatter, object, input_object, timeout, is_async, [&](Call& call) {
    const Tensor output = view_tensor(object, "output", Use::kWrite);
    const Tensor input = view_tensor(input_object, "input", Use::kRead);
    const int n = num_ranks();
    describe(output, call);
    set_reduction(call, how);
    check_same_dtype(output, input, "output and input");
    check_reducible(call);
    if (input.view.count != output.view.count * std::uint64_t(n))
      throw UsageProblem("input has " + count_text(input) + " elements; " + std::to_string(n) +
                         " ranks need " + std::to_string(output.view.count * std::uint64_t(n)));
    auto device = on_device(call, object, {{&output, 1}, false, true}, {{&input, 1}, true, false}, cuda::Form::kSingle);
    const Apart apart = find_shared({{&input, 1}, nullptr, output.view.bytes()}, {{&output, 1}}, rank());
    return [call, hosts = hosts_.get(), out = Place(output), in = Places(input, equal_blocks(output.view.bytes(), n), apart.inputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::reduce_scatter(group, call, in.data.data(), out.data, in.bytes.data()); });
      out.store();
    };
  });
}

nb::object RankEndpoint::all_to_all(const Arguments& args) {
  const nb::handle output_list = args.required(0), input_list = args.required(1);
  const double timeout = args.seconds(2);
  const bool is_async = args.flag(3);
  return collective(Operation::kAllToAll, output_list, input_list, timeout, is_async, [&](Call& call) {
    const std::vector<Tensor> outputs = view_tensors(output_list, "outputs", Use::kWrite);
    const std::vector<Tensor> inputs = view_tensors(input_list, "inputs", Use::kRead);
    check_list_length(outputs, num_ranks(), "outputs");
    check_list_length(inputs, num_ranks(), "inputs");
    describe(inputs.front(), call);
    call.is_uneven = true;
    call.count = 0;  // sizes may differ between ranks; receivers check them
    call.size_bytes = 0;
    for (const Tensor& input : inputs) call.size_bytes += input.view.bytes();
    check_list_dtypes(outputs, inputs.front(), "outputs and inputs");
    check_list_dtypes(inputs, inputs.front(), "inputs");
    auto device = on_device(call, input_list[0], {outputs, false, true}, {inputs, true, false});
    const Apart apart = find_shared({inputs}, {outputs}, rank());
    return [call, hosts = hosts_.get(), out = Places(outputs, apart.outputs), in = Places(inputs, apart.inputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::all_to_all(group, call, in.data.data(), in.bytes.data(), out.data.data(), out.bytes.data()); });
      out.store();
    };
  });
}

nb::object RankEndpoint::all_to_all_single(const Arguments& args) {
  const nb::handle output_object = args.required(0), input_object = args.required(1);
  const nb::handle output_splits = args.optional(2), input_splits = args.optional(3);
  const double timeout = args.seconds(4);
  const bool is_async = args.flag(5);
  return collective(Operation::kAllToAll, output_object, input_object, timeout, is_async, [&](Call& call) {
    const Tensor output = view_tensor(output_object, "output", Use::kWrite);
    const Tensor input = view_tensor(input_object, "input", Use::kRead);
    const int n = num_ranks();
    describe(input, call);
    call.is_uneven = output.view.bytes() > input.view.bytes();
    call.count = 0;
    check_same_dtype(output, input, "output and input");
    const PerRank<std::size_t> output_bytes = split_bytes(output, output_splits, n, "output");
    const PerRank<std::size_t> input_bytes = split_bytes(input, input_splits, n, "input");
    constexpr int kMostEven = 128;  // more ranks have too many pairs for one rank to serve them all
    const bool is_even = n <= kMostEven && are_alike(output_bytes) && are_alike(input_bytes);
    auto device = on_device(call, input_object, {{&output, 1}, false, true, is_even ? nullptr : &output_bytes},
                            {{&input, 1}, true, false, is_even ? nullptr : &input_bytes},
                            is_even ? cuda::Form::kSingle : cuda::Form::kList);
    const Apart apart = find_shared({{&input, 1}, &input_bytes}, {{&output, 1}, &output_bytes}, rank());
    return [call, hosts = hosts_.get(), out = Places(output, output_bytes), in = Places(input, input_bytes, apart.inputs), device = std::move(device)](Endpoint& e) {
      if (device) return device->run(e, call);
      in.load();
      on_group(e, hosts, [&](auto& group) { phalanx::all_to_all(group, call, in.data.data(), in.bytes.data(), out.data.data(), out.bytes.data()); });
      out.store();
    };
  });
}

nb::object RankEndpoint::barrier(const Arguments& args) {
  return collective(Operation::kBarrier, nb::none(), nb::handle(), args.seconds(0), args.flag(1),
                    [&](Call& call) { return [call, hosts = hosts_.get()](Endpoint& e) {
                        on_group(e, hosts, [&](auto& group) { phalanx::barrier(group, call); });
                      }; });
}

}  // namespace phalanx::python
