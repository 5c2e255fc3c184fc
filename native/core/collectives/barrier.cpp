#include "collectives.hpp"

namespace phalanx {

void barrier(Endpoint& self, const Call& call) {
  self.begin(call);
  self.publish(call, nullptr, 0);
  self.await_arrivals(call);
  self.end();
}

}  // namespace phalanx
