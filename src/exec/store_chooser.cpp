#include "exec/store_chooser.hpp"

#include <algorithm>

namespace accord::exec {
namespace {

using kernels::Store;

/// A sample this much above the cost of the last measurement is too expensive; this many in a row are not chance.
constexpr double kCostly = 1.5;
constexpr std::uint8_t kCostlySamples = 3;
/// The other kind must be cheaper by this much to be worth a change.
constexpr double kCheaper = 0.85;

/// If the other kind costs this much more than the kind in use, it will not become the cheaper one.
constexpr double kHopeless = 4;

constexpr Store other(Store kind) { return kind == Store::kTemporal ? Store::kNonTemporal : Store::kTemporal; }

}  // namespace

// A measurement begins with the other kind and ends with the one in use, whose second block is representative of later
// ones.
Store StoreChooser::kind_to_measure(const Choice& choice) {
  return choice.measurement < kMeasureLength / 2 ? other(choice.kind) : choice.kind;
}

void StoreChooser::learn(Choice& choice, Store kind, double cost) {
  double& known = choice.cost[static_cast<std::size_t>(kind)];
  if (choice.measurement == kNotMeasuring) {
    choice.costly_samples = cost > kCostly * known ? choice.costly_samples + 1 : 0;
    if (choice.costly_samples == kCostlySamples || choice.blocks % kMeasureEvery == 0) choice.measurement = 0;
    return;
  }
  const double in_use = choice.cost[static_cast<std::size_t>(choice.kind)];
  const bool regular = in_use > 0 && choice.costly_samples < kCostlySamples;
  if (regular && kind != choice.kind && cost > kHopeless * in_use) {
    choice.measurement = kNotMeasuring;
    choice.costly_samples = 0;
    return;
  }
  known = choice.measurement % 2 == 0 ? cost : std::min(known, cost);
  if (++choice.measurement < kMeasureLength) return;
  choice.costly_samples = 0;
  const auto cost_of = [&](Store store) { return choice.cost[static_cast<std::size_t>(store)]; };
  if (cost_of(other(choice.kind)) < kCheaper * cost_of(choice.kind)) choice.kind = other(choice.kind);
}

}  // namespace accord::exec
