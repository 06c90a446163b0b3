// One pass over all steps records where each event happens and where it is awaited; then the two sides are compared.

#include "plan/verifier/pairing.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "plan/step_rules.hpp"

namespace accord::plan {
namespace {

struct Ends {
  std::optional<StepPlace> made;
  std::optional<StepPlace> used;
};

class Pairing {
 public:
  explicit Pairing(const Plan& plan) : plan_(plan) {}

  Status check() {
    for (Rank rank = 0; rank < plan_.size; ++rank) {
      const std::vector<Lane>& lanes = plan_.programs[static_cast<std::size_t>(rank)].lanes;
      for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        awaited_ranks_.clear();
        for (std::size_t step = 0; step < lanes[lane].steps.size(); ++step) {
          const StepPlace place{rank, static_cast<int>(lane), static_cast<int>(step)};
          ACCORD_RETURN_IF_ERROR(note(place, lanes[lane].steps[step]));
        }
      }
      ACCORD_RETURN_IF_ERROR(check_barriers(rank));
    }
    ACCORD_RETURN_IF_ERROR(check_signals());
    return check_packets();
  }

 private:
  Status error(const StepPlace& place, const Step& step, std::string_view problem) const {
    return step_error(plan_, place, step, problem);
  }
  const Step& step_at(const StepPlace& place) const {
    const Program& program = plan_.programs[static_cast<std::size_t>(place.rank)];
    return program.lanes[static_cast<std::size_t>(place.lane)].steps[static_cast<std::size_t>(place.step)];
  }

  Status note(const StepPlace& place, const Step& step) {
    if (const Status status = check_step(plan_, place.rank, step); !status.ok()) {
      return error(place, step, status.message());
    }
    switch (step.kind) {
      case StepKind::kSignal:
      case StepKind::kWait: return note_signal(place, step);
      case StepKind::kPutPackets: return note_put(place, step);
      case StepKind::kLaneBarrier: return note_barrier(place, step);
      case StepKind::kReduce:
        if (plan_.order == Order::kNone)
          return error(place, step, "the plan declares no order of sums, but this step adds");
        if (step.sources[0].rank == kEveryRank && plan_.order != Order::kSwitch)
          return error(
              place, step,
              fmt::format("a switch adds in an order of its own, not in the plan's, \"{}\"", to_string(plan_.order)));
        [[fallthrough]];
      case StepKind::kCopy: ACCORD_RETURN_IF_ERROR(check_awaited(place, step)); return note_packet_reads(place, step);
    }
    return {};
  }

  // A peer's signals carry the location of its buffers.
  Status check_awaited(const StepPlace& place, const Step& step) const {
    for (const auto* chunks : {&step.sources, &step.destinations}) {
      for (const Chunk& chunk : *chunks) {
        const bool is_buffer = chunk.space == Space::kInput || chunk.space == Space::kOutput;
        if (!is_buffer || chunk.rank == place.rank || awaited_ranks_.contains(chunk.rank)) continue;
        return error(
            place, step,
            fmt::format("accesses {} before its lane has waited for a signal of rank {}, which carries its location",
                        to_string(chunk), chunk.rank));
      }
    }
    return {};
  }

  Status note_signal(const StepPlace& place, const Step& step) {
    if (step.id >= plan_.signals) {
      return error(place, step,
                   fmt::format("signal {} is out of bounds: the plan has {} for each pair", step.id, plan_.signals));
    }
    if (step.kind == StepKind::kWait) {
      awaited_ranks_.insert(step.peer);
      signals_[{step.peer, place.rank, step.id}].used = place;
      return {};
    }
    Ends& ends = signals_[{place.rank, step.peer, step.id}];
    if (ends.made) {
      return error(place, step,
                   fmt::format("the signal is sent twice a round; {} sends it too", place_text(plan_, *ends.made)));
    }
    ends.made = place;
    return {};
  }

  Status note_put(const StepPlace& place, const Step& step) {
    Ends& ends = packets_[{step.peer, step.destinations[0].index}];
    if (ends.made) {
      return error(place, step,
                   fmt::format("{} is put twice a round; {} puts it too", to_string(step.destinations[0]),
                               place_text(plan_, *ends.made)));
    }
    ends.made = place;
    return {};
  }

  Status note_packet_reads(const StepPlace& place, const Step& step) {
    for (const Chunk& source : step.sources) {
      if (source.space != Space::kPackets) continue;
      Ends& ends = packets_[{source.rank, source.index}];
      if (ends.used) {
        return error(
            place, step,
            fmt::format("{} is read twice a round; {} reads it too", to_string(source), place_text(plan_, *ends.used)));
      }
      ends.used = place;
    }
    return {};
  }

  Status note_barrier(const StepPlace& place, const Step& step) {
    std::map<int, StepPlace>& lanes = barriers_[step.id];
    if (!lanes.emplace(place.lane, place).second)
      return error(place, step, "the lane reaches this barrier twice a round");
    return {};
  }

  Status check_barriers(Rank rank) {
    const auto lanes = static_cast<int>(plan_.programs[static_cast<std::size_t>(rank)].lanes.size());
    for (const auto& [id, places] : barriers_) {
      for (int lane = 0; lane < lanes; ++lane) {
        if (places.contains(lane)) continue;
        const StepPlace& place = places.begin()->second;
        return error(place, step_at(place), fmt::format("waits for ever: lane {} never reaches this barrier", lane));
      }
    }
    barriers_.clear();
    return {};
  }

  Status check_signals() const {
    for (const auto& [key, ends] : signals_) {
      const auto& [from, to, id] = key;
      if (!ends.made) {
        return error(*ends.used, step_at(*ends.used),
                     fmt::format("waits for ever: rank {} never sends this signal", from));
      }
      if (!ends.used)
        return error(*ends.made, step_at(*ends.made), fmt::format("rank {} never waits for this signal", to));
    }
    return {};
  }

  Status check_packets() const {
    for (const auto& [key, ends] : packets_) {
      const Chunk chunk{key.first, Space::kPackets, key.second};
      if (!ends.made) {
        return error(*ends.used, step_at(*ends.used), fmt::format("waits for ever: nobody puts {}", to_string(chunk)));
      }
      if (!ends.used) {
        return error(*ends.made, step_at(*ends.made),
                     fmt::format("rank {} never reads {}", chunk.rank, to_string(chunk)));
      }
    }
    return {};
  }

  const Plan& plan_;
  std::map<std::tuple<Rank, Rank, int>, Ends> signals_;  // from, to, id
  std::map<std::pair<Rank, int>, Ends> packets_;         // owner, index
  std::map<int, std::map<int, StepPlace>> barriers_;     // of one rank: id, lane
  std::set<Rank> awaited_ranks_;                         // of one lane: ranks that it has waited for
};

Status check_programs(const Plan& plan) {
  const auto invalid = [&](std::string problem) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", to_string(plan), problem));
  };
  if (const Status status = check_whole_shape(plan); !status.ok()) return invalid(status.message());
  if (plan.programs.size() != static_cast<std::size_t>(plan.size)) {
    return invalid(fmt::format("has programs for {} of its ranks", plan.programs.size()));
  }
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    const std::size_t lanes = plan.programs[rank].lanes.size();
    if (lanes == 0) return invalid(fmt::format("rank {} has no program", rank));
    if (lanes > kMaxLanes) return invalid(fmt::format("rank {} has {} lanes; there may be {}", rank, lanes, kMaxLanes));
  }
  return {};
}

}  // namespace

Status check_pairing(const Plan& plan) {
  ACCORD_RETURN_IF_ERROR(check_programs(plan));
  return Pairing(plan).check();
}

}  // namespace accord::plan
