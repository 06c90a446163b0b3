#pragma once
// Happens-before between the lanes of all ranks, by vector clocks (Mattern 1989; for races, FastTrack's epochs,
// 2009).

#include <cstdint>
#include <memory>
#include <vector>

namespace accord::plan {

using Clock = std::vector<std::uint32_t>;
/// A clock at a moment; shared by all events of that moment.
using Moment = std::shared_ptr<const Clock>;

/// An event of a lane.
struct Epoch {
  int lane = 0;
  std::uint32_t time = 0;
};

/// The clocks of `lanes` lanes. Cost: O(lanes) for each synchronization of two.
class Clocks {
 public:
  explicit Clocks(std::size_t lanes) : clocks_(lanes, Clock(lanes, 0)), moments_(lanes) {}

  /// A new event of `lane`.
  Epoch tick(int lane) {
    moments_[at(lane)] = nullptr;
    return {lane, ++clocks_[at(lane)][at(lane)]};
  }
  /// The current clock of `lane`.
  Moment moment(int lane) {
    Moment& moment = moments_[at(lane)];
    if (!moment) moment = std::make_shared<const Clock>(clocks_[at(lane)]);
    return moment;
  }
  /// Merges `clock` into the clock of `lane`.
  void learn(int lane, const Clock& clock) {
    moments_[at(lane)] = nullptr;
    join(clocks_[at(lane)], clock);
  }
  /// True if `event` happened before the next action of `lane`.
  bool knows(int lane, const Epoch& event) const { return clocks_[at(lane)][at(event.lane)] >= event.time; }

  static void join(Clock& clock, const Clock& other) {
    for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = clock[i] < other[i] ? other[i] : clock[i];
  }

 private:
  static std::size_t at(int lane) { return static_cast<std::size_t>(lane); }
  std::vector<Clock> clocks_;
  std::vector<Moment> moments_;  // null: changed since
};

}  // namespace accord::plan
