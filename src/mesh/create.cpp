// The groups of a family are stored at one offset in the windows of all ranks. Each family has room for one group of
// its size; a group that is also a group of an earlier family uses that family's place. Every rank therefore knows
// where a group is stored on all of its ranks, without communication.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "accord/mesh.hpp"
#include "comm/internal.hpp"
#include "device/runtime.hpp"
#include "mesh/config.hpp"
#include "mesh/plan.hpp"

namespace accord {
namespace {

struct Fate {
  const char* option;
  MeshOptionFate fate;
  const char* why;
};
// For groups of ranks without GPUs.
constexpr Fate kFates[] = {
    {"is_high_priority_stream", MeshOptionFate::kNotApplicable, "CPU ranks have no streams"},
    {"cga_cluster_size", MeshOptionFate::kNotApplicable, "CPU ranks have no clusters of blocks"},
    {"max_ctas", MeshOptionFate::kNotApplicable, "CPU ranks have no blocks"},
    {"min_ctas", MeshOptionFate::kNotApplicable, "CPU ranks have no blocks"},
    {"net_name", MeshOptionFate::kNotApplicable, "UCX uses the network that UCX_NET_DEVICES names"},
    {"timeout_seconds", MeshOptionFate::kApplied, "to the group's calls"},
    {"backend", MeshOptionFate::kTranslated, "the group is accord's"},
};

std::vector<MeshOptionReport> fates_of(const std::map<std::string, MeshGroupOptions>& options) {
  const bool has_gpu = device::runtime_of(DeviceType::kCuda).ok();
  std::vector<MeshOptionReport> reports;
  for (const auto& [key, given] : options) {
    const std::map<std::string, std::string> settings = mesh::settings_of(given);
    for (const Fate& fate : kFates) {
      const auto value = settings.find(fate.option);
      if (value == settings.end()) continue;
      const bool is_for_gpus = has_gpu && fate.fate == MeshOptionFate::kNotApplicable;
      reports.push_back({key, fate.option, value->second, is_for_gpus ? MeshOptionFate::kApplied : fate.fate,
                         is_for_gpus ? "to the group's calls on GPUs" : fate.why});
    }
  }
  return reports;
}

Status check_strict(const std::vector<MeshOptionReport>& reports) {
  for (const MeshOptionReport& report : reports) {
    if (report.fate != MeshOptionFate::kNotApplicable) continue;
    return Status(StatusCode::kUnsupported, fmt::format("mesh: {}={} of \"{}\" has no effect: {}", report.option,
                                                        report.value, report.key, report.why));
  }
  return {};
}

/// The offset of each family's groups, and the end of all of them.
std::vector<std::size_t> offsets_of(const MeshPlan& plan, std::size_t slot_bytes) {
  std::vector<std::size_t> offsets = {0};
  for (const MeshFamily& family : plan.families()) {
    const std::size_t bytes = family.group_size > 1 ? comm::SharedGroups::bytes(family.group_size, slot_bytes) : 0;
    offsets.push_back(offsets.back() + bytes);
  }
  return offsets;
}

comm::GroupOptions options_of_groups(const Communicator& parent, MeshOptions given) {
  comm::GroupOptions options = comm::options_of(parent);
  options.name = std::move(given.name);
  options.timeout = given.timeout.value_or(options.timeout);
  return options;
}

}  // namespace

std::string_view to_string(MeshOptionFate fate) {
  switch (fate) {
    case MeshOptionFate::kApplied: return "applied";
    case MeshOptionFate::kTranslated: return "translated";
    case MeshOptionFate::kNotApplicable: return "not applicable";
  }
  return "unknown";
}

class Mesh::State final : public comm::MadeFromGroup {
 public:
  State(MeshPlan plan, Rank rank, std::vector<std::size_t> offsets, comm::GroupOptions options,
        std::vector<MeshOptionReport> reports, std::shared_ptr<comm::SharedGroups> groups)
      : plan_(std::move(plan)),
        rank_(rank),
        offsets_(std::move(offsets)),
        options_(std::move(options)),
        reports_(std::move(reports)),
        shared_(std::move(groups)) {
    if (shared_ == nullptr) return;
    for (MeshGroup& group : plan_.groups_of(rank_)) {
      for (const int family : group.families) place_of_family_.emplace(family, groups_.size());
      groups_.push_back({std::move(group), std::nullopt});
    }
  }

  const MeshPlan& plan() const { return plan_; }
  Rank rank() const { return rank_; }
  bool has_groups() const { return shared_ != nullptr; }
  const std::vector<MeshOptionReport>& reports() const { return reports_; }
  std::size_t window_bytes() const { return offsets_.back(); }

  Result<std::optional<Communicator>> group(std::string_view family) {
    ACCORD_ASSIGN_OR_RETURN(const int number, plan_.family(family));
    const auto place = place_of_family_.find(number);
    if (place == place_of_family_.end()) return std::optional<Communicator>();
    const std::lock_guard lock(mutex_);
    ACCORD_RETURN_IF_ERROR(ended_);
    OwnGroup& own = groups_[place->second];
    if (!own.communicator) {
      ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> created, create_group(own.group));
      own.communicator = Communicator(std::move(created));
    }
    return own.communicator;
  }

  /// Groups that were created live on with their communicators. The peers of the others are notified that this rank
  /// will never join.
  ~State() {
    if (ended_.ok()) decline_uncreated();
  }

  void abort(std::string_view reason) override {
    const std::lock_guard lock(mutex_);  // the parent itself aborts the groups that exist
    end(Status(StatusCode::kAborted, fmt::format("mesh \"{}\" was aborted on this rank: {}", options_.name, reason)));
  }

  void close() {
    const std::lock_guard lock(mutex_);
    end(Status(StatusCode::kClosed, fmt::format("mesh \"{}\" was closed on this rank", options_.name)));
    for (OwnGroup& own : groups_) {
      if (own.communicator) own.communicator->close();
    }
  }

 private:
  struct OwnGroup {
    MeshGroup group;
    std::optional<Communicator> communicator;
  };

  /// No group is created any more. REQUIRES: mutex_ is held.
  void end(Status why) {
    if (!ended_.ok()) return;
    ended_ = std::move(why);
    decline_uncreated();
  }

  void decline_uncreated() const {
    for (const OwnGroup& own : groups_) {
      if (!own.communicator) shared_->leave(place_of(own.group));
    }
  }

  comm::SharedPlace place_of(const MeshGroup& group) const {
    const auto first = static_cast<std::size_t>(group.families.front());
    comm::SharedPlace place{.offset = offsets_[first], .ranks = group.ranks};
    for (Rank& rank : place.ranks) rank -= plan_.rank_offset();
    return place;
  }

  Result<std::shared_ptr<comm::Group>> create_group(const MeshGroup& group) const {
    const int first = group.families.front();
    comm::GroupOptions options = options_;
    options.name = fmt::format("{}.{}", options_.name, plan_.families()[static_cast<std::size_t>(first)].name);
    if (group.options.timeout_seconds) {
      options.timeout =
          std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*group.options.timeout_seconds));
    }
    GroupHints& hints = options.hints;
    hints.is_high_priority_stream = group.options.is_high_priority_stream.value_or(hints.is_high_priority_stream);
    const auto set_hint = [](auto& hint, const auto& given) {
      if (given) hint = given;
    };
    set_hint(hints.cga_cluster_size, group.options.cga_cluster_size);
    set_hint(hints.max_ctas, group.options.max_ctas);
    set_hint(hints.min_ctas, group.options.min_ctas);
    set_hint(hints.net_name, group.options.net_name);
    return shared_->make(place_of(group), options);
  }

  const MeshPlan plan_;
  const Rank rank_;
  const std::vector<std::size_t> offsets_;
  const comm::GroupOptions options_;
  const std::vector<MeshOptionReport> reports_;
  const std::shared_ptr<comm::SharedGroups> shared_;
  std::map<int, std::size_t> place_of_family_;
  std::mutex mutex_;
  std::vector<OwnGroup> groups_;  // communicators guarded by mutex_
  Status ended_;                  // why no group is created any more, or ok; guarded by mutex_
};

Result<Mesh> Mesh::create(const MeshPlan& plan, Communicator& communicator, MeshOptions given) {
  const bool is_whole = communicator.size() == plan.world_size();
  const Rank first = is_whole ? 0 : plan.rank_offset();
  Status error;
  if (first + plan.world_size() > communicator.size()) {
    error = Status(StatusCode::kInvalidArgument,
                   fmt::format("mesh: the plan has ranks {} to {}, but group \"{}\" has {} ranks", first,
                               first + plan.world_size() - 1, communicator.name(), communicator.size()));
  }
  std::vector<MeshOptionReport> reports = fates_of(plan.state()->options());
  if (error.ok() && given.strict) error = check_strict(reports);
  const comm::GroupOptions options = options_of_groups(communicator, std::move(given));
  std::vector<std::size_t> offsets = offsets_of(plan, options.hints.slot_bytes);
  const comm::SharedGroups::Request request{
      .first = first,
      .size = plan.world_size(),
      .window_bytes = offsets.back(),
      .terms = fmt::format("name={} slot_bytes={} {}", options.name, options.hints.slot_bytes, plan.text()),
      .refused = std::move(error),
      .options = options};
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::SharedGroups> groups,
                          comm::SharedGroups::connect(*communicator.group(), request));
  const Rank rank = communicator.rank() + (is_whole ? plan.rank_offset() : 0);
  auto state = std::make_shared<State>(plan, rank, std::move(offsets), options, std::move(reports), std::move(groups));
  if (state->has_groups()) comm::add_made(communicator, state);
  return Mesh(std::move(state));
}

Status Mesh::decline(Communicator& communicator, std::string_view why, MeshOptions given) {
  const comm::GroupOptions options = options_of_groups(communicator, std::move(given));
  return comm::SharedGroups::decline(*communicator.group(), options, why);
}

const MeshPlan& Mesh::plan() const { return state_->plan(); }
Rank Mesh::rank() const { return state_->rank(); }
bool Mesh::has_groups() const { return state_->has_groups(); }
Result<std::optional<Communicator>> Mesh::group(std::string_view family) const { return state_->group(family); }
const std::vector<MeshOptionReport>& Mesh::report() const { return state_->reports(); }
std::size_t Mesh::window_bytes() const { return state_->window_bytes(); }
void Mesh::close() { state_->close(); }

}  // namespace accord
