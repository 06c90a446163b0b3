// The text is parsed into a tree, which JsonNode walks, so that every error names the place. Shape and steps are
// checked against the same rules as in the builder, so that the resulting plan is safe to verify, lower and print,
// whatever the text was.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/json_node.hpp"
#include "base/text.hpp"
#include "plan/json.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {
namespace {

using Json = nlohmann::json;

Status read_integer(const JsonNode& node, int& value) {
  ACCORD_ASSIGN_OR_RETURN(value, node.integer());
  return {};
}

// The rank of a chunk.
Status read_rank(const JsonNode& node, Rank& rank) {
  if (!node.json().is_string()) return read_integer(node, rank);
  ACCORD_ASSIGN_OR_RETURN(const std::string word, node.text());
  if (word != kEveryRankWord) return node.error(fmt::format("a rank is a number, or \"{}\"", kEveryRankWord));
  rank = kEveryRank;
  return {};
}

Result<Space> read_space(const JsonNode& node) {
  return node.one_of(
      "space", {Space::kInput, Space::kOutput, Space::kScratch, Space::kPackets, Space::kPartials, Space::kMulticast});
}

Result<Chunk> read_chunk(const JsonNode& node) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> parts, node.items());
  if (parts.size() != 3) return node.error("a chunk is [rank, space, index]");
  Chunk chunk;
  ACCORD_RETURN_IF_ERROR(read_rank(parts[0], chunk.rank));
  ACCORD_ASSIGN_OR_RETURN(chunk.space, read_space(parts[1]));
  ACCORD_RETURN_IF_ERROR(read_integer(parts[2], chunk.index));
  return chunk;
}

Status read_chunks(const JsonNode& node, std::vector<Chunk>& chunks) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, node.items());
  for (const JsonNode& item : nodes) {
    ACCORD_ASSIGN_OR_RETURN(const Chunk chunk, read_chunk(item));
    chunks.push_back(chunk);
  }
  return {};
}

Status read_event(const JsonNode& node, Step& step) {
  static constexpr std::array<std::string_view, 3> kKeys = {"step", "peer", "id"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("peer"), step.peer));
  return read_integer(node.at("id"), step.id);
}

Status read_lane_barrier(const JsonNode& node, Step& step) {
  static constexpr std::array<std::string_view, 2> kKeys = {"step", "id"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  return read_integer(node.at("id"), step.id);
}

Status read_movement(const JsonNode& node, Step& step) {
  static constexpr std::array<std::string_view, 3> kKeys = {"step", "from", "to"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  ACCORD_RETURN_IF_ERROR(read_chunks(node.at("from"), step.sources));
  ACCORD_RETURN_IF_ERROR(read_chunks(node.at("to"), step.destinations));
  if (step.kind == StepKind::kPutPackets && !step.destinations.empty()) step.peer = step.destinations[0].rank;
  return {};
}

Result<Step> read_step(const Plan& plan, Rank rank, const JsonNode& node) {
  if (!node.has("step")) return node.error("a step is an object with the key \"step\"");
  Step step;
  ACCORD_ASSIGN_OR_RETURN(
      step.kind, node.at("step").one_of("step", {StepKind::kCopy, StepKind::kReduce, StepKind::kSignal, StepKind::kWait,
                                                 StepKind::kPutPackets, StepKind::kLaneBarrier}));
  switch (step.kind) {
    case StepKind::kSignal:
    case StepKind::kWait: ACCORD_RETURN_IF_ERROR(read_event(node, step)); break;
    case StepKind::kLaneBarrier: ACCORD_RETURN_IF_ERROR(read_lane_barrier(node, step)); break;
    case StepKind::kCopy:
    case StepKind::kReduce:
    case StepKind::kPutPackets: ACCORD_RETURN_IF_ERROR(read_movement(node, step)); break;
  }
  if (const Status status = check_step(plan, rank, step); !status.ok()) return node.error(status.message());
  return step;
}

Result<Program> read_program(const Plan& plan, Rank rank, const JsonNode& node) {
  static constexpr std::array<std::string_view, 1> kKeys = {"lanes"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> lanes, node.at("lanes").items());
  if (lanes.size() > kMaxLanes)
    return node.error(fmt::format("{} lanes; a rank has at most {}", lanes.size(), kMaxLanes));
  Program program;
  for (const JsonNode& lane : lanes) {
    program.lanes.emplace_back();
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> steps, lane.items());
    for (const JsonNode& item : steps) {
      ACCORD_ASSIGN_OR_RETURN(Step step, read_step(plan, rank, item));
      program.lanes.back().steps.push_back(std::move(step));
    }
  }
  return program;
}

Status read_chunk_counts(const JsonNode& node, Plan& plan) {
  std::vector<std::string_view> keys = {"input", "output", "scratch", "packets"};
  for (const std::string_view key : {"partials", "multicast"})
    if (node.has(key)) keys.push_back(key);
  ACCORD_RETURN_IF_ERROR(node.check_keys(keys));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("input"), plan.input_chunks));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("output"), plan.output_chunks));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("scratch"), plan.scratch_chunks));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("packets"), plan.packet_chunks));
  if (node.has("partials")) ACCORD_RETURN_IF_ERROR(read_integer(node.at("partials"), plan.partial_chunks));
  return node.has("multicast") ? read_integer(node.at("multicast"), plan.multicast_chunks) : Status();
}

// Everything but the programs.
Status read_head(const JsonNode& node, Plan& plan) {
  ACCORD_ASSIGN_OR_RETURN(plan.name, node.at("name").name());
  ACCORD_ASSIGN_OR_RETURN(const std::string collective, node.at("collective").text());
  const Result<Collective> known = collective_from_string(collective);
  if (!known.ok()) return node.at("collective").error(known.status().message());
  plan.collective = *known;
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("size"), plan.size));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("root"), plan.root));
  ACCORD_ASSIGN_OR_RETURN(
      plan.order, node.at("order").one_of("order", {Order::kNone, Order::kCanonical, Order::kFixed, Order::kSwitch}));
  ACCORD_ASSIGN_OR_RETURN(plan.pacing, node.at("pacing").one_of("pacing", {Pacing::kByExecutor, Pacing::kByPlan}));
  if (node.has("buffers")) {
    ACCORD_ASSIGN_OR_RETURN(plan.buffers, node.at("buffers").one_of("buffers", {Buffers::kAnywhere, Buffers::kInWindows,
                                                                                Buffers::kInWindowsApart}));
  }
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("signals"), plan.signals));
  ACCORD_RETURN_IF_ERROR(read_chunk_counts(node.at("chunks"), plan));
  if (const Status status = check_whole_shape(plan); !status.ok()) return node.error(status.message());
  return {};
}

Status check_version(const JsonNode& node) {
  if (node.has("gpus") && node.has("protocol"))
    return node.error("this is an execution plan of MSCCL++; accord plan import makes a plan of it");
  if (!node.has("format") || !node.has("version"))
    return node.error("this is not a plan: \"format\" or \"version\" is missing");
  ACCORD_ASSIGN_OR_RETURN(const std::string format, node.at("format").text());
  if (format != "accord-plan")
    return node.at("format").error(fmt::format("expected \"accord-plan\", not \"{}\"", format));
  ACCORD_ASSIGN_OR_RETURN(const int version, node.at("version").integer());
  if (version == kPlanJsonVersion) return {};
  return {StatusCode::kUnsupported,
          fmt::format("plan JSON: version {}; this build reads version {}", version, kPlanJsonVersion)};
}

Result<Plan> read_plan(const JsonNode& node) {
  static constexpr std::array<std::string_view, 12> kKeys = {"format",  "version", "name",     "collective",
                                                             "size",    "root",    "order",    "pacing",
                                                             "signals", "chunks",  "programs", "buffers"};
  ACCORD_RETURN_IF_ERROR(check_version(node));
  ACCORD_RETURN_IF_ERROR(node.check_keys(node.has(kKeys.back()) ? kKeys : std::span(kKeys).first(11)));
  Plan plan;
  ACCORD_RETURN_IF_ERROR(read_head(node, plan));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> programs, node.at("programs").items());
  if (programs.size() != static_cast<std::size_t>(plan.size)) {
    return node.at("programs").error(fmt::format("{} programs for {} ranks", programs.size(), plan.size));
  }
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    ACCORD_ASSIGN_OR_RETURN(Program program, read_program(plan, static_cast<Rank>(rank), programs[rank]));
    plan.programs.push_back(std::move(program));
  }
  return plan;
}

}  // namespace

Result<Plan> plan_from_json(std::string_view text) {
  ACCORD_ASSIGN_OR_RETURN(const JsonTree tree, JsonTree::parse(text, "plan JSON"));
  return read_plan(tree.root());
}

}  // namespace accord::plan
