// A wire that an object of Python provides: phalanx.groups.wires.wire.Wire.
#pragma once

#include <nanobind/nanobind.h>

#include "../core/hosts/wire.hpp"

namespace phalanx::python {

namespace nb = nanobind;

// Every method takes the GIL; the object lets go of it while it waits.
class PythonWire final : public Wire {
 public:
  explicit PythonWire(nb::object wire) : wire_(std::move(wire)) {}
  ~PythonWire() override;

  std::vector<Handle> start(std::span<const WireMessage> messages) override;
  void wait(std::span<const Handle> handles, std::int64_t limit_ns) override;
  bool has_come(Handle handle) noexcept override;
  void cut() noexcept override;
  void close() noexcept override;

 private:
  nb::object wire_;
};

}  // namespace phalanx::python
