#include "python_wire.hpp"

#include <nanobind/stl/vector.h>

#include "../core/hosts/card.hpp"
#include "plain_text.hpp"
#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

// Runs `call()` with the GIL. What it raises becomes a WireError.
template <class Call>
auto with_python(const Call& call) {
  const nb::gil_scoped_acquire locked;
  try {
    return call();
  } catch (const nb::python_error& error) {
    throw WireError(utf8_of(nb::str(error.value())));
  }
}

}  // namespace

PythonWire::~PythonWire() {
  const nb::gil_scoped_acquire locked;
  wire_.reset();
}

std::vector<Wire::Handle> PythonWire::start(std::span<const WireMessage> messages) {
  if (messages.empty()) return {};
  return with_python([&] {
    nb::list list;
    for (const WireMessage& message : messages)
      list.append(nb::make_tuple(message.is_send, message.peer, message.tag, reinterpret_cast<std::uintptr_t>(message.data), message.bytes));
    std::vector<Handle> handles;
    for (nb::handle handle : wire_.attr("start")(list)) handles.push_back(nb::cast<Handle>(handle));
    return handles;
  });
}

void PythonWire::wait(std::span<const Handle> handles, std::int64_t limit_ns) {
  with_python([&] {
    nb::list list;
    for (const Handle handle : handles) list.append(handle);
    wire_.attr("wait")(list, double(limit_ns) * 1e-9);
  });
}

bool PythonWire::has_come(Handle handle) noexcept {
  try {
    return with_python([&] { return nb::cast<bool>(wire_.attr("has_come")(handle)); });
  } catch (const std::exception&) {
    return false;
  }
}

void PythonWire::cut() noexcept {
  try {
    with_python([&] { wire_.attr("cut")(); });
  } catch (const std::exception&) {  // it was cut already
  }
}

void PythonWire::close() noexcept {
  try {
    with_python([&] { wire_.attr("close")(); });
  } catch (const std::exception&) {  // it was cut already
  }
}

void RankEndpoint::refuse_device() {
  throw UsageProblem("tensors of a GPU don't travel between hosts here; make the group with backend \"cpu:phalanx,cuda:nccl\"");
}

void RankEndpoint::join_hosts(int descriptor, std::vector<std::vector<int>> hosts, int rank, nb::object wire, nb::object helper) {
  helper_ = std::move(helper);
  wire_ = std::make_unique<PythonWire>(std::move(wire));
  // The helper lives as long as this object, which outlives the group below.
  Words words;
  words.describe_call = [helper = helper_.ptr()](const Card& card) {
    return with_python([&] {
      const auto field = [&](int shift) { return std::size_t(card.signature >> shift & 0xff); };
      nb::list shape;
      for (std::uint32_t i = 0; i < card.num_dims; ++i) shape.append(card.shape[i]);
      const nb::object text = nb::handle(helper).attr("describe_call")(
          operation_name(static_cast<Operation>(field(0))), dtype_name(static_cast<DType>(std::min(field(8), std::size_t(DType::kCount)))),
          reduce_op_name(static_cast<ReduceOp>(field(16))), std::int32_t(card.signature >> 32), card.count, nb::tuple(shape),
          text_of(card.text));
      return utf8_of(nb::str(text));
    });
  };
  words.describe_trouble = [helper = helper_.ptr()](const Trouble& trouble) {
    return with_python([&] {
      const nb::object facts = trouble_of(fault_name(trouble.kind), Call{}, trouble.seq, 0, nb::str(""), trouble);
      return utf8_of(nb::str(nb::handle(helper).attr("describe_trouble")(facts)));
    });
  };
  words.find_late = [helper = helper_.ptr()](Seq seq) {
    return with_python([&] { return utf8_of(nb::str(nb::handle(helper).attr("find_late")(seq))); });
  };
  words.find_left = [helper = helper_.ptr()] {
    return with_python([&] { return utf8_of(nb::str(nb::handle(helper).attr("find_left")())); });
  };
  words.find_gone = [helper = helper_.ptr()] {
    const nb::gil_scoped_acquire locked;
    try {
      return nb::cast<std::vector<int>>(nb::handle(helper).attr("find_gone")());
    } catch (nb::python_error& error) {  // Ctrl-C, for example: close() raises it
      error.restore();
      throw WireError("interrupted");
    }
  };
  const nb::gil_scoped_release unlocked;
  hosts_ = std::make_unique<HostGroup>(endpoint_, Segment::attach(descriptor), HostMap(std::move(hosts), rank), *wire_, *mailbox_, std::move(words));
}

}  // namespace phalanx::python
