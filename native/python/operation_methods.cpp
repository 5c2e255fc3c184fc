#include "operation_methods.hpp"

#include "arguments.hpp"
#include "methods.hpp"
#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

using Operator = nb::object (RankEndpoint::*)(const Arguments&);

// One row of the table below: names, how many of them may be positional, and who serves the call.
template <Operator kServe, const auto& kNames, std::size_t kPositional>
PyObject* serve(PyObject* self, PyObject* const* values, Py_ssize_t num_given, PyObject* keywords) noexcept {
  return return_to_python([&] {
    if (!nb::inst_ready(self)) [[unlikely]]
      throw nb::type_error("this group was made by hand; phalanx.connect() returns one");
    RankEndpoint& endpoint = *nb::inst_ptr<RankEndpoint>(self);
    if (endpoint.is_hooked()) [[unlikely]] {
      if (endpoint.is_recording()) return endpoint.record(kNames.function, values, num_given, keywords);
      endpoint.intercept(kNames.function, values, num_given, keywords);
    }
    const Arguments arguments(kNames.function, kNames.names, kPositional, values, num_given, keywords);
    return (endpoint.*kServe)(arguments);
  });
}

constexpr Signature<4> kAllReduce{"all_reduce", {"tensor", "op", "timeout_s", "async_op"}};
constexpr Signature<4> kAllReduceCoalesced{"all_reduce_coalesced", {"tensors", "op", "timeout_s", "async_op"}};
constexpr Signature<5> kReduce{"reduce", {"tensor", "root", "op", "timeout_s", "async_op"}};
constexpr Signature<4> kBroadcast{"broadcast", {"tensor", "root", "timeout_s", "async_op"}};
constexpr Signature<4> kAllGather{"all_gather", {"outputs", "input", "timeout_s", "async_op"}};
constexpr Signature<4> kAllGatherSingle{"all_gather_single", {"output", "input", "timeout_s", "async_op"}};
constexpr Signature<5> kGather{"gather", {"outputs", "input", "root", "timeout_s", "async_op"}};
constexpr Signature<5> kScatter{"scatter", {"output", "inputs", "root", "timeout_s", "async_op"}};
constexpr Signature<5> kReduceScatter{"reduce_scatter", {"output", "inputs", "op", "timeout_s", "async_op"}};
constexpr Signature<5> kReduceScatterSingle{"reduce_scatter_single", {"output", "input", "op", "timeout_s", "async_op"}};
constexpr Signature<4> kAllToAll{"all_to_all", {"outputs", "inputs", "timeout_s", "async_op"}};
constexpr Signature<6> kAllToAllSingle{
    "all_to_all_single", {"output", "input", "output_splits", "input_splits", "timeout_s", "async_op"}};
constexpr Signature<2> kBarrier{"barrier", {"timeout_s", "async_op"}};
constexpr Signature<5> kSend{"send", {"tensor", "destination", "tag", "timeout_s", "async_op"}};
constexpr Signature<5> kRecv{"recv", {"tensor", "source", "tag", "timeout_s", "async_op"}};

#define PHALANX_METHOD(name, signature, positional, text) \
  method(#name, &serve<&RankEndpoint::name, signature, positional>, #name text)

PyMethodDef methods[] = {
    PHALANX_METHOD(all_reduce, kAllReduce, 2,
                   "($self, tensor, op='sum', *, timeout_s=None, async_op=False)\n--\n\n"
                   "Reduce the tensor over all ranks, in place."),
    PHALANX_METHOD(all_reduce_coalesced, kAllReduceCoalesced, 2,
                   "($self, tensors, op='sum', *, timeout_s=None, async_op=False)\n--\n\n"
                   "Reduce a list of tensors over all ranks, in place."),
    PHALANX_METHOD(reduce, kReduce, 3,
                   "($self, tensor, root=0, op='sum', *, timeout_s=None, async_op=False)\n--\n\n"
                   "Reduce the tensor into the root's; the other ranks' tensors stay as they are."),
    PHALANX_METHOD(broadcast, kBroadcast, 2,
                   "($self, tensor, root=0, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Copy the root's tensor into every rank's."),
    PHALANX_METHOD(all_gather, kAllGather, 2,
                   "($self, outputs, input, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Copy rank i's input into outputs[i] on every rank; sizes may differ."),
    PHALANX_METHOD(all_gather_single, kAllGatherSingle, 2,
                   "($self, output, input, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Copy all inputs into one output, concatenated or stacked."),
    PHALANX_METHOD(gather, kGather, 3,
                   "($self, outputs, input, root=0, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Copy rank i's input into the root's outputs[i]; other ranks give None."),
    PHALANX_METHOD(scatter, kScatter, 3,
                   "($self, output, inputs=None, root=0, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Copy the root's inputs[i] into rank i's output; other ranks give None."),
    PHALANX_METHOD(reduce_scatter, kReduceScatter, 3,
                   "($self, output, inputs, op='sum', *, timeout_s=None, async_op=False)\n--\n\n"
                   "Reduce inputs[i] of all ranks into rank i's output; sizes may differ."),
    PHALANX_METHOD(reduce_scatter_single, kReduceScatterSingle, 3,
                   "($self, output, input, op='sum', *, timeout_s=None, async_op=False)\n--\n\n"
                   "Reduce the i-th block of all ranks' inputs into rank i's output."),
    PHALANX_METHOD(all_to_all, kAllToAll, 2,
                   "($self, outputs, inputs, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Copy inputs[i] to rank i, and what rank i has for this rank into outputs[i]."),
    PHALANX_METHOD(all_to_all_single, kAllToAllSingle, 4,
                   "($self, output, input, output_splits=None, input_splits=None, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Exchange rows of one tensor; without splits every rank gets the same number."),
    PHALANX_METHOD(barrier, kBarrier, 0,
                   "($self, *, timeout_s=None, async_op=False)\n--\n\nWait until every rank is here."),
    PHALANX_METHOD(send, kSend, 3,
                   "($self, tensor, destination, tag=0, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Send the tensor to one rank."),
    PHALANX_METHOD(recv, kRecv, 3,
                   "($self, tensor, source=None, tag=0, *, timeout_s=None, async_op=False)\n--\n\n"
                   "Receive into the tensor, from one rank or from any; return the source."),
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};

}  // namespace

PyType_Slot* operation_slots() { return slots; }

}  // namespace phalanx::python
