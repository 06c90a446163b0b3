// The text becomes a tree, and the tree is read by a cursor that knows its own path, so that every error tells where. Shape and
// steps are held against the same rules as those of the builder, so that a plan which comes out of here is safe to
// verify, lower and print, whatever the text was.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/text.hpp"
#include "plan/json.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {
namespace {

using Json = nlohmann::json;

Status corrupt(std::string_view path, std::string_view problem) {
  return {StatusCode::kCorrupt, fmt::format("plan JSON: {}{}{}", path, path.empty() ? "" : ": ", problem)};
}

// A node of the tree and the way to it.
class Node {
 public:
  Node(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  Status error(std::string_view problem) const { return corrupt(path_, problem); }

  // An object with exactly these keys.
  Status check_keys(std::span<const std::string_view> keys) const {
    if (!json_->is_object()) return error("expected an object");
    for (const auto& [key, value] : json_->items()) {
      if (std::ranges::find(keys, key) == keys.end()) return error(unknown_name("key", key, keys).message());
    }
    for (const std::string_view key : keys) {
      if (!json_->contains(key)) return error(fmt::format("lacks \"{}\"", key));
    }
    return {};
  }
  bool has(std::string_view key) const { return json_->is_object() && json_->contains(key); }
  // REQUIRES: has(key).
  Node at(std::string_view key) const {
    return {(*json_)[std::string(key)], path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
  }

  Result<std::vector<Node>> items() const {
    if (!json_->is_array()) return error("expected a list");
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < json_->size(); ++i) nodes.emplace_back((*json_)[i], fmt::format("{}[{}]", path_, i));
    return nodes;
  }

  Result<int> integer() const {
    constexpr auto kMax = std::numeric_limits<int>::max();
    const bool fits = json_->is_number_unsigned() ? json_->get<std::uint64_t>() <= kMax
                                                  : json_->is_number_integer() && json_->get<std::int64_t>() >= -kMax;
    if (!fits) return error("expected a whole number of 32 bits");
    return json_->get<int>();
  }

  Result<std::string> text() const {
    if (!json_->is_string()) return error("expected a text");
    return json_->get<std::string>();
  }

  // One of `values`, by its name.
  template <typename Enum>
  Result<Enum> one_of(std::string_view what, std::initializer_list<Enum> values) const {
    ACCORD_ASSIGN_OR_RETURN(const std::string name, text());
    std::vector<std::string_view> names;
    for (const Enum value : values) {
      if (to_string(value) == name) return value;
      names.push_back(to_string(value));
    }
    return error(unknown_name(what, name, names).message());
  }

 private:
  const Json* json_;
  std::string path_;
};

Status read_integer(const Node& node, int& value) {
  ACCORD_ASSIGN_OR_RETURN(value, node.integer());
  return {};
}

Result<Space> read_space(const Node& node) {
  return node.one_of("space", {Space::kInput, Space::kOutput, Space::kScratch, Space::kPackets, Space::kPartials});
}

Result<Chunk> read_chunk(const Node& node) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Node> parts, node.items());
  if (parts.size() != 3) return node.error("a chunk is [rank, space, index]");
  Chunk chunk;
  ACCORD_RETURN_IF_ERROR(read_integer(parts[0], chunk.rank));
  ACCORD_ASSIGN_OR_RETURN(chunk.space, read_space(parts[1]));
  ACCORD_RETURN_IF_ERROR(read_integer(parts[2], chunk.index));
  return chunk;
}

Status read_chunks(const Node& node, std::vector<Chunk>& chunks) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Node> nodes, node.items());
  for (const Node& item : nodes) {
    ACCORD_ASSIGN_OR_RETURN(const Chunk chunk, read_chunk(item));
    chunks.push_back(chunk);
  }
  return {};
}

Status read_event(const Node& node, Step& step) {
  static constexpr std::array<std::string_view, 3> kKeys = {"step", "peer", "id"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("peer"), step.peer));
  return read_integer(node.at("id"), step.id);
}

Status read_lane_barrier(const Node& node, Step& step) {
  static constexpr std::array<std::string_view, 2> kKeys = {"step", "id"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  return read_integer(node.at("id"), step.id);
}

Status read_movement(const Node& node, Step& step) {
  static constexpr std::array<std::string_view, 3> kKeys = {"step", "from", "to"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  ACCORD_RETURN_IF_ERROR(read_chunks(node.at("from"), step.sources));
  ACCORD_RETURN_IF_ERROR(read_chunks(node.at("to"), step.destinations));
  if (step.kind == StepKind::kPutPackets && !step.destinations.empty()) step.peer = step.destinations[0].rank;
  return {};
}

Result<Step> read_step(const Plan& plan, Rank rank, const Node& node) {
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

Result<Program> read_program(const Plan& plan, Rank rank, const Node& node) {
  static constexpr std::array<std::string_view, 1> kKeys = {"lanes"};
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Node> lanes, node.at("lanes").items());
  if (lanes.size() > kMaxLanes)
    return node.error(fmt::format("{} lanes; a rank has at most {}", lanes.size(), kMaxLanes));
  Program program;
  for (const Node& lane : lanes) {
    program.lanes.emplace_back();
    ACCORD_ASSIGN_OR_RETURN(const std::vector<Node> steps, lane.items());
    for (const Node& item : steps) {
      ACCORD_ASSIGN_OR_RETURN(Step step, read_step(plan, rank, item));
      program.lanes.back().steps.push_back(std::move(step));
    }
  }
  return program;
}

Status read_chunk_counts(const Node& node, Plan& plan) {
  static constexpr std::array<std::string_view, 5> kKeys = {"input", "output", "scratch", "packets", "partials"};
  const bool has_partials = node.has(kKeys.back());
  ACCORD_RETURN_IF_ERROR(node.check_keys(has_partials ? kKeys : std::span(kKeys).first(4)));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("input"), plan.input_chunks));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("output"), plan.output_chunks));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("scratch"), plan.scratch_chunks));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("packets"), plan.packet_chunks));
  return has_partials ? read_integer(node.at("partials"), plan.partial_chunks) : Status();
}

// Everything but the programs.
Status read_head(const Node& node, Plan& plan) {
  ACCORD_ASSIGN_OR_RETURN(plan.name, node.at("name").text());
  ACCORD_ASSIGN_OR_RETURN(const std::string collective, node.at("collective").text());
  const Result<Collective> known = collective_from_string(collective);
  if (!known.ok()) return node.at("collective").error(known.status().message());
  plan.collective = *known;
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("size"), plan.size));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("root"), plan.root));
  ACCORD_ASSIGN_OR_RETURN(plan.order,
                          node.at("order").one_of("order", {Order::kNone, Order::kCanonical, Order::kFixed}));
  ACCORD_ASSIGN_OR_RETURN(plan.pacing, node.at("pacing").one_of("pacing", {Pacing::kByExecutor, Pacing::kByPlan}));
  ACCORD_RETURN_IF_ERROR(read_integer(node.at("signals"), plan.signals));
  ACCORD_RETURN_IF_ERROR(read_chunk_counts(node.at("chunks"), plan));
  if (const Status status = check_shape(plan); !status.ok()) return node.error(status.message());
  return {};
}

Status check_version(const Node& node) {
  if (!node.has("format") || !node.has("version"))
    return node.error("this is no plan: \"format\" or \"version\" is missing");
  ACCORD_ASSIGN_OR_RETURN(const std::string format, node.at("format").text());
  if (format != "accord-plan")
    return node.at("format").error(fmt::format("expected \"accord-plan\", not \"{}\"", format));
  ACCORD_ASSIGN_OR_RETURN(const int version, node.at("version").integer());
  if (version == kPlanJsonVersion) return {};
  return {StatusCode::kUnsupported,
          fmt::format("plan JSON: version {}; this build reads version {}", version, kPlanJsonVersion)};
}

Result<Plan> read_plan(const Node& node) {
  static constexpr std::array<std::string_view, 11> kKeys = {
      "format", "version", "name", "collective", "size", "root", "order", "pacing", "signals", "chunks", "programs"};
  ACCORD_RETURN_IF_ERROR(check_version(node));
  ACCORD_RETURN_IF_ERROR(node.check_keys(kKeys));
  Plan plan;
  ACCORD_RETURN_IF_ERROR(read_head(node, plan));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Node> programs, node.at("programs").items());
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
  Json tree;
  try {
    tree = Json::parse(text);
  } catch (const Json::exception& exception) {
    return corrupt("", exception.what());
  }
  return read_plan(Node(tree, ""));
}

}  // namespace accord::plan
