// The limits come from the tables, which count slots and choices in 32 bits.
#include "expert/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/text.hpp"

namespace accord {
namespace {

constexpr std::array<std::string_view, 3> kPolicyNames = {"fail", "drop_by_weight", "drop_by_slot"};
constexpr std::array<std::string_view, 4> kAlgorithmNames = {"auto", "direct", "all_to_all", "hierarchical"};

template <typename Enum>
Result<Enum> from_name(std::string_view what, std::string_view name, std::span<const std::string_view> names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return unknown_name(what, name, names);
  return static_cast<Enum>(found - names.begin());
}

}  // namespace

std::string_view to_string(OverflowPolicy policy) { return kPolicyNames[static_cast<std::size_t>(policy)]; }
Result<OverflowPolicy> overflow_policy_from_string(std::string_view name) {
  return from_name<OverflowPolicy>("overflow policy", name, kPolicyNames);
}
std::string_view to_string(ExpertAlgorithm algorithm) { return kAlgorithmNames[static_cast<std::size_t>(algorithm)]; }
Result<ExpertAlgorithm> expert_algorithm_from_string(std::string_view name) {
  return from_name<ExpertAlgorithm>("expert algorithm", name, kAlgorithmNames);
}

}  // namespace accord

namespace accord::expert {
namespace {

Status invalid_config(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

/// A number that ranks compare, with its name.
struct Field {
  std::string_view name;
  std::int64_t value = 0;
};
constexpr std::size_t kFields = 14;

std::int64_t number_of(const Placement& placement) {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a over (rank, expert)
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  for (int place = 0; place < placement.places(); ++place) {
    add(static_cast<std::uint64_t>(placement.holder[place]));
    add(static_cast<std::uint64_t>(placement.expert[place]));
  }
  return static_cast<std::int64_t>(hash);
}

std::array<Field, kFields> fields_of(const GroupSetup& setup) {
  const ExpertGroupConfig& config = setup.config;
  return {{{"experts", config.experts},
           {"top_k", config.top_k},
           {"hidden", config.hidden},
           {"max_tokens_per_rank", config.max_tokens_per_rank},
           {"max_recv_rows", config.max_recv_rows},
           {"alignment", config.alignment},
           {"dtype", static_cast<std::int64_t>(config.dtype)},
           {"overflow", static_cast<std::int64_t>(config.overflow)},
           {"algorithm", static_cast<std::int64_t>(config.algorithm)},
           {"ranks_per_host", config.ranks_per_host},
           {"device type", static_cast<std::int64_t>(config.device.type)},
           {"staging_bytes", static_cast<std::int64_t>(config.staging_bytes)},
           {"number of places", setup.placement->places()},
           {"placement", number_of(*setup.placement)}}};
}

Status check(const ExpertGroupConfig& config, int ranks) {
  const auto check_range = [](std::string_view name, std::int64_t value, std::int64_t min,
                              std::int64_t max = kMaxInt32) {
    if (value >= min && value <= max) return Status();
    return invalid_config(fmt::format("{} is {}, it has to be {} to {}", name, value, min, max));
  };
  ACCORD_RETURN_IF_ERROR(check_range("experts", config.experts, 1, kMaxExperts));
  ACCORD_RETURN_IF_ERROR(check_range("top_k", config.top_k, 1, config.experts));
  ACCORD_RETURN_IF_ERROR(check_range("hidden", config.hidden, 1));
  ACCORD_RETURN_IF_ERROR(check_range("max_tokens_per_rank", config.max_tokens_per_rank, 1));
  ACCORD_RETURN_IF_ERROR(check_range("max_recv_rows", config.max_recv_rows, 0));
  ACCORD_RETURN_IF_ERROR(check_range("alignment", config.alignment, 1, 1 << 24));
  ACCORD_RETURN_IF_ERROR(check_range("ranks_per_host", config.ranks_per_host, 0));
  ACCORD_RETURN_IF_ERROR(check_range("staging_bytes", static_cast<std::int64_t>(config.staging_bytes), 0,
                                     std::numeric_limits<std::int64_t>::max() / 2));
  if (kind_of(config.dtype) != DTypeKind::kFloat)
    return invalid_config(fmt::format("dtype is {}, but rows must have a float dtype", to_string(config.dtype)));
  if (std::int64_t{ranks} * config.max_tokens_per_rank * config.top_k > kMaxInt32)
    return invalid_config(
        fmt::format("max_tokens_per_rank is {}: with {} ranks and top_k {} there may be more than {} choices",
                    config.max_tokens_per_rank, ranks, config.top_k, kMaxInt32));
  if (config.max_recv_rows == 0 && config.overflow != OverflowPolicy::kFail)
    return invalid_config(
        fmt::format("overflow is {}, but without max_recv_rows nothing overflows", to_string(config.overflow)));
  if (config.device.type == DeviceType::kCpu) return {};
  const auto unsupported = [&](std::string_view what) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}, which is not supported on GPUs; device is {}", what, to_string(config.device)));
  };
  if (config.algorithm == ExpertAlgorithm::kHierarchical)
    return unsupported(fmt::format("algorithm is {}", to_string(config.algorithm)));
  if (config.ranks_per_host != 0) return unsupported(fmt::format("ranks_per_host is {}", config.ranks_per_host));
  if (config.staging_bytes != 0) return unsupported(fmt::format("staging_bytes is {}", config.staging_bytes));
  return {};
}

/// A twentieth of the rows that a rank receives on average if every rank has max_tokens_per_rank tokens, clamped to
/// 256 KiB to 8 MiB.
std::size_t default_staging(const ExpertGroupConfig& config) {
  constexpr std::size_t kMin = std::size_t{256} << 10, kMax = std::size_t{8} << 20;
  const auto rows = static_cast<std::size_t>(config.max_tokens_per_rank) * static_cast<std::size_t>(config.top_k);
  return std::clamp(rows / 20 * row_bytes(config.hidden, config.dtype), kMin, kMax);
}

}  // namespace

Result<Resolved> resolve(ExpertGroupConfig config, int ranks) {
  ACCORD_RETURN_IF_ERROR(check(config, ranks));
  if (config.placement.empty()) {
    Result<ExpertPlacement> uniform = uniform_expert_placement(config.experts, ranks);
    if (!uniform.ok()) return uniform.status().with_context("experts");
    config.placement = std::move(*uniform);
  }
  ACCORD_ASSIGN_OR_RETURN(Placement placement, make_placement(config.placement, config.experts, ranks));
  // Padding adds at most alignment - 1 rows to each expert.
  const std::int64_t max_rows = std::int64_t{ranks} * config.max_tokens_per_rank * config.top_k +
                                std::int64_t{placement.places()} * (config.alignment - 1);
  if (max_rows > kMaxInt32)
    return invalid_config(
        fmt::format("alignment is {}: a rank may have more than {} rows", config.alignment, kMaxInt32));
  if (config.device.type == DeviceType::kCpu && config.staging_bytes == 0)
    config.staging_bytes = default_staging(config);
  return Resolved{std::move(config), std::move(placement)};
}

Result<ExpertLayerConfig> resolve(ExpertLayerConfig layer, const ExpertGroupConfig& group) {
  if (layer.top_k == 0) layer.top_k = group.top_k;
  if (layer.alignment == 0) layer.alignment = group.alignment;
  if (layer.top_k < 1 || layer.top_k > group.top_k)
    return invalid_config(fmt::format("top_k is {}, it has to be 1 to the group's {}", layer.top_k, group.top_k));
  if (layer.alignment < 1 || layer.alignment > group.alignment)
    return invalid_config(
        fmt::format("alignment is {}, it has to be 1 to the group's {}", layer.alignment, group.alignment));
  return layer;
}

Status agree(Communicator& communicator, const GroupSetup& mine) {
  const std::array<Field, kFields> fields = fields_of(mine);
  std::array<std::int64_t, kFields> own;
  for (std::size_t i = 0; i < kFields; ++i) own[i] = fields[i].value;
  std::vector<std::int64_t> all(kFields * static_cast<std::size_t>(communicator.size()));
  ACCORD_RETURN_IF_ERROR(
      communicator.all_gather({own.data(), own.size(), DType::kInt64}, {all.data(), all.size(), DType::kInt64, {}}));
  for (Rank rank = 1; rank < communicator.size(); ++rank) {
    for (std::size_t i = 0; i < kFields; ++i) {
      const std::int64_t theirs = all[rank * kFields + i];
      if (theirs == all[i]) continue;
      const bool is_number = fields[i].name != "placement";
      return {StatusCode::kMismatch,
              is_number ? fmt::format("{} is {} on rank 0 and {} on rank {}", fields[i].name, all[i], theirs, rank)
                        : fmt::format("the placement of rank {} differs from that of rank 0", rank),
              {rank}};
    }
  }
  return {};
}

}  // namespace accord::expert
