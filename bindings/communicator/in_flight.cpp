// Few works are dropped unfinished, so a plain list is enough. It is searched whenever another operation starts or
// ends.
#include "bindings/communicator/in_flight.hpp"

#include <algorithm>
#include <vector>

namespace accord::python {
namespace {

struct InFlight {
  Work work;
  HeldArguments arguments;
};

std::vector<InFlight>& in_flight() {
  static auto* list = new std::vector<InFlight>;  // never destroyed, see the header
  return *list;
}

}  // namespace

void keep_until_ended(Work work, HeldArguments arguments) {
  release_ended();
  in_flight().push_back({std::move(work), std::move(arguments)});
}

void release_ended() {
  auto& list = in_flight();
  if (list.empty()) return;
  std::vector<InFlight> ended;  // destroyed last: freeing an array may run Python code that calls this function again
  const auto first = std::partition(list.begin(), list.end(), [](const InFlight& entry) { return !entry.work.test(); });
  std::move(first, list.end(), std::back_inserter(ended));
  list.erase(first, list.end());
}

}  // namespace accord::python
