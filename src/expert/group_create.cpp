// Each rank first creates its private resources, including those on its GPU. Then the ranks meet, so that an error of
// one rank is reported on all, compare their configurations, and map each other's memory.
#include <algorithm>
#include <atomic>

#include "base/rounding.hpp"
#include "expert/group.hpp"
#include "expert/rows_back.hpp"

namespace accord::expert {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next = 0;
  return ++next;
}

/// Bytes of staging memory per rank. Each half has room at least for one row of every rank, and for the pieces of one
/// token of every rank.
std::size_t staging_bytes(const Resolved& resolved, int ranks) {
  const ExpertGroupConfig& config = resolved.config;
  const std::size_t row =
      row_bytes(config.hidden, config.dtype) + sizeof(float) * to_size(scales_of_row(config.hidden));
  const std::size_t piece = min_back_staging(config, max_nodes(resolved.placement, config.top_k));
  return std::max(config.staging_bytes, 2 * to_size(ranks) * round_up(std::max(row, piece), std::size_t{64}));
}

}  // namespace

Result<std::shared_ptr<Group>> Group::create(Communicator& borrowed, Result<ExpertGroupConfig> config) {
  Result<Resolved> resolved =
      config.ok() ? resolve(*std::move(config), borrowed.size()) : Result<Resolved>(config.status());
  Result<std::optional<Communicator>> split = borrowed.split(0, borrowed.rank(), borrowed.name() + ".experts");
  if (!split.ok()) return split.status().with_context("expert group");
  Communicator own = **split;
  Rendezvous rendezvous(own);
  std::unique_ptr<DeviceGroup> device;
  Status ready = resolved.status();
  if (ready.ok() && resolved->config.device.type != DeviceType::kCpu) {
    Result<std::unique_ptr<DeviceGroup>> created = DeviceGroup::create(own, resolved->config, resolved->placement);
    ready = created.status();
    if (created.ok()) device = *std::move(created);
  }
  ACCORD_RETURN_IF_ERROR(rendezvous.meet({}, ready));
  ACCORD_RETURN_IF_ERROR(agree(own, *resolved).with_context("expert group"));
  if (device != nullptr) ACCORD_RETURN_IF_ERROR(device->connect().with_context("expert group"));
  ACCORD_ASSIGN_OR_RETURN(Window staging, own.window(device != nullptr ? 0 : staging_bytes(*resolved, own.size())));
  Domains domains(std::vector<int>(to_size(own.size())));
  if (device == nullptr) {
    ACCORD_ASSIGN_OR_RETURN(domains, find_domains(own, staging, resolved->config));
  }
  return std::shared_ptr<Group>(
      new Group(std::move(own), std::move(*resolved), std::move(staging), std::move(domains), std::move(device)));
}

Group::Group(Communicator communicator, Resolved resolved, Window staging, Domains domains,
             std::unique_ptr<DeviceGroup> device)
    : communicator_(std::move(communicator)),
      config_(std::move(resolved.config)),
      placement_(std::make_shared<const Placement>(std::move(resolved.placement))),
      staging_(std::move(staging)),
      domains_(std::move(domains)),
      max_nodes_(max_nodes(*placement_, config_.top_k)),
      rendezvous_(communicator_),
      id_(next_id()),
      ids_(to_size(config_.max_tokens_per_rank) * to_size(config_.top_k)),
      gathered_weights_(ids_.size() * to_size(size())),
      counts_(to_size(size())),
      back_counts_(to_size(size())),
      leaves_(to_size(config_.top_k)),
      operands_(leaves_.size()),
      keys_(leaves_.size()),
      pieces_(to_size(size())),
      merge_order_(config_.top_k),
      device_(std::move(device)) {
  for (Rank r = 0; r < size(); ++r) {
    guests_of_.push_back(domains_.guests(r));
    max_guests_ = std::max(max_guests_, guests_of_.back().size());
  }
  report_ = start_report(communicator_.name(), config_, rank(), size());
  rendezvous_.share_clock_with(domains_.ranks(domains_.of(rank())));
}

Group::~Group() {
  if (device_ != nullptr) device_->wait_for_peers();
}

void Group::close() {
  if (device_ != nullptr) device_->wait_for_peers();
  communicator_.close();
}

}  // namespace accord::expert
