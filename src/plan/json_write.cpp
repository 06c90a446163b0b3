// Written directly rather than from a tree, so that each step is one line and two plans can be compared line by line.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "plan/json.hpp"

namespace accord::plan {
namespace {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string chunks_json(const std::vector<Chunk>& chunks) {
  std::vector<std::string> items;
  items.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    const std::string rank =
        chunk.rank == kEveryRank ? fmt::format("\"{}\"", kEveryRankWord) : fmt::format("{}", chunk.rank);
    items.push_back(fmt::format("[{}, \"{}\", {}]", rank, to_string(chunk.space), chunk.index));
  }
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string step_json(const Step& step) {
  const std::string head = fmt::format("{{\"step\": \"{}\"", to_string(step.kind));
  switch (step.kind) {
    case StepKind::kSignal:
    case StepKind::kWait: return fmt::format("{}, \"peer\": {}, \"id\": {}}}", head, step.peer, step.id);
    case StepKind::kLaneBarrier: return fmt::format("{}, \"id\": {}}}", head, step.id);
    case StepKind::kCopy:
    case StepKind::kReduce:
    case StepKind::kPutPackets: break;
  }
  return fmt::format("{}, \"from\": {}, \"to\": {}}}", head, chunks_json(step.sources), chunks_json(step.destinations));
}

// `items`, one per line, indented by `indent`.
std::string list_json(const std::vector<std::string>& items, std::size_t indent) {
  if (items.empty()) return "[]";
  const std::string margin(indent, ' ');
  return fmt::format("[\n{}{}]", margin, fmt::join(items, fmt::format(",\n{}", margin)));
}

// Counts of partials and multicast appear only if they are not 0, so that plans without them have the same text in
// every version.
std::string chunk_counts_json(const Plan& plan) {
  const std::string partials = plan.partial_chunks == 0 ? "" : fmt::format(", \"partials\": {}", plan.partial_chunks);
  const std::string multicast =
      plan.multicast_chunks == 0 ? "" : fmt::format(", \"multicast\": {}", plan.multicast_chunks);
  return fmt::format("{{\"input\": {}, \"output\": {}, \"scratch\": {}, \"packets\": {}{}{}}}", plan.input_chunks,
                     plan.output_chunks, plan.scratch_chunks, plan.packet_chunks, partials, multicast);
}

// Left out for the default, for the same reason.
std::string buffers_json(const Plan& plan) {
  return plan.buffers == Buffers::kAnywhere ? "" : fmt::format("\"buffers\": \"{}\",\n", to_string(plan.buffers));
}

}  // namespace

std::string to_json(const Plan& plan) {
  std::vector<std::string> programs;
  for (const Program& program : plan.programs) {
    std::vector<std::string> lanes;
    for (const Lane& lane : program.lanes) {
      std::vector<std::string> steps;
      for (const Step& step : lane.steps) steps.push_back(step_json(step));
      lanes.push_back(list_json(steps, 6));
    }
    programs.push_back(fmt::format("{{\"lanes\": {}}}", list_json(lanes, 4)));
  }
  return fmt::format(
      "{{\n"
      "\"format\": \"accord-plan\",\n\"version\": {},\n\"name\": {},\n\"collective\": \"{}\",\n\"size\": "
      "{},\n\"root\": {},\n"
      "\"order\": \"{}\",\n\"pacing\": \"{}\",\n{}\"signals\": {},\n"
      "\"chunks\": {},\n"
      "\"programs\": {}\n"
      "}}\n",
      kPlanJsonVersion, json_text(plan.name), to_string(plan.collective), plan.size, plan.root, to_string(plan.order),
      to_string(plan.pacing), buffers_json(plan), plan.signals, chunk_counts_json(plan), list_json(programs, 2));
}

}  // namespace accord::plan
