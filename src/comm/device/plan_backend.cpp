// The program of a request is a pure function of the request, the same on all ranks. When a request first occurs,
// each rank makes the programs of all ranks, so that none runs a program that another rank cannot run. The ranks are
// few, all of one host.
#include "comm/device/plan_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/call.hpp"
#include "comm/explain.hpp"
#include "comm/group.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm {
namespace {

/// The most thread blocks of a call unless max_ctas says otherwise. Calls that are not large use at most
/// exec::kUsualInstances of them.
constexpr int kMostInstances = 32;
/// Calls use so many only if no ranks share a GPU, and on GPUs that have this many multiprocessors, so that others
/// remain for the program's own kernels.
constexpr int kManyMultiprocessors = 2 * kMostInstances;
/// Time for kernels to end. One that is queued behind work that is not accord's may take longer.
constexpr std::chrono::seconds kStopTimeout(5);

}  // namespace

PlanBackend::PlanBackend(Group& group, device::Runtime& runtime, Device device, std::shared_ptr<StopWord> stop)
    : group_(group),
      runtime_(runtime),
      device_(device),
      layout_(exec::device_layout(group.size(), group.options().hints.max_ctas.value_or(exec::kUsualInstances),
                                  group.options().hints.slot_bytes)),
      stop_(std::move(stop)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory here ends the process
PlanBackend::~PlanBackend() {
  if (is_under_way()) stop_->set();
  abort();
  // A kernel that has not begun, queued behind work that is not accord's, will still read its memory, so the memory
  // is not released.
  if (is_under_way()) {
    (void)memory_.release();
    (void)multicast_.release();
    (void)new std::shared_ptr<StopWord>(stop_);  // NOLINT(bugprone-unhandled-exception-at-new)
  }
}

bool PlanBackend::serves(const Call& call) {
  const bool scales = call.op.op() == ReduceOp::kPremulSum && plan::traits_of(call.collective).reduces;
  return call.direction == Direction::kNone && call.division == Division::kEqual && !scales;
}

Status PlanBackend::check(const Call& call) const {
  if (serves(call)) return {};
  return Status(StatusCode::kUnsupported, "plans on devices have no messages, parts of unequal counts or factors");
}

Status PlanBackend::connect(Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(const int instances, agree_on_instances(deadline));
  layout_ = exec::device_layout(layout_.members, instances, group_.options().hints.slot_bytes);
  ACCORD_ASSIGN_OR_RETURN(memory_, PeerMemory::create(group_, runtime_, device_, layout_.bytes(), deadline));
  std::vector<std::byte*> addresses;
  for (const Rank rank : group_.topology().ranks()) addresses.push_back(memory_->of(rank));
  return all_ok(group_, publish_addresses(exec::DeviceLayout::address_of(0), addresses), deadline);
}

Result<int> PlanBackend::agree_on_instances(Deadline deadline) {
  const Result<int> mine = runtime_.multiprocessors(device_);
  ACCORD_RETURN_IF_ERROR(all_ok(group_, mine.status(), deadline));
  // A GPU without a known identity is taken for one that all such ranks of its host share.
  const Result<std::string> gpu = runtime_.identity(device_);
  const std::string text = fmt::format("{} {}", *mine, gpu.ok() ? *gpu : "");
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group_, text, deadline.remaining()));
  const auto gpu_of = [&](Rank rank) {
    const std::string& theirs = texts[static_cast<std::size_t>(rank)];
    return std::pair(group_.topology().host_of(rank), theirs.substr(std::min(theirs.find(' '), theirs.size())));
  };
  std::map<std::pair<int, std::string>, int> ranks_on;
  for (const Rank rank : group_.topology().ranks()) ++ranks_on[gpu_of(rank)];
  int multiprocessors = std::numeric_limits<int>::max(), sharing = 1;
  max_blocks_ = multiprocessors;
  for (const Rank rank : group_.topology().ranks()) {
    const std::string& theirs = texts[static_cast<std::size_t>(rank)];
    int its = 0;
    const auto read = std::from_chars(theirs.data(), theirs.data() + theirs.size(), its);
    if (read.ec != std::errc() || its < 1)
      return Status(StatusCode::kInternal, fmt::format("a rank reports {} multiprocessors", quoted_text(theirs)));
    multiprocessors = std::min(multiprocessors, its);
    sharing = std::max(sharing, ranks_on[gpu_of(rank)]);
    max_blocks_ = std::min(max_blocks_, its / ranks_on[gpu_of(rank)]);
  }
  if (max_blocks_ == 0) return Status(StatusCode::kUnsupported, "more ranks share a GPU than it has multiprocessors");
  const bool has_many = sharing == 1 && multiprocessors >= kManyMultiprocessors;
  const int most = group_.options().hints.max_ctas.value_or(has_many ? kMostInstances : exec::kUsualInstances);
  return std::min(most, max_blocks_);
}

Status PlanBackend::connect_multicast(Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(multicast_,
                          MulticastMemory::create(group_, runtime_, device_, layout_.multicast_bytes(), deadline));
  ACCORD_RETURN_IF_ERROR(all_ok(
      group_, publish_addresses(exec::DeviceLayout::address_of(group_.size()), {multicast_->own(), multicast_->all()}),
      deadline));
  layout_.has_multicast = true;
  return {};
}

Status PlanBackend::publish_addresses(std::size_t offset, const std::vector<std::byte*>& addresses) {
  ACCORD_ASSIGN_OR_RETURN(const Stream stream, runtime_.create_stream(device_, false));
  Status status = runtime_.copy(memory_->of(group_.rank()) + offset, addresses.data(),
                                addresses.size() * sizeof(std::byte*), device_, stream);
  if (status.ok()) status = runtime_.synchronize(device_, stream);
  (void)runtime_.destroy_stream(device_, stream);
  return status;
}

Result<std::shared_ptr<PlanWindow>> PlanBackend::add_window(const LentMemory& lent, std::size_t bytes,
                                                            Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<PeerMemory> memory,
                          lent.memory != nullptr ? PeerMemory::share(group_, runtime_, device_, lent, bytes, deadline)
                                                 : PeerMemory::create(group_, runtime_, device_, bytes, deadline));
  // A number that no rank uses: those of windows that a rank has released are still in use on others.
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          gather_texts(group_, fmt::format("{}", windows_->free_numbers()), deadline.remaining()));
  std::uint64_t free = ~std::uint64_t{0};
  for (const std::string& text : texts) {
    std::uint64_t its = 0;
    (void)std::from_chars(text.data(), text.data() + text.size(), its);
    free &= its;
  }
  if (free == 0)
    return Status(StatusCode::kUnsupported,
                  fmt::format("a group has at most {} windows at a time", exec::DeviceLayout::kMaxWindows));
  const int number = std::countr_zero(free);
  std::vector<std::byte*> addresses;
  for (const Rank rank : group_.topology().ranks()) addresses.push_back(memory->of(rank));
  ACCORD_RETURN_IF_ERROR(all_ok(group_, publish_addresses(layout_.window(number, 0), addresses), deadline));
  return std::make_shared<PlanWindow>(windows_, number, std::move(memory), group_.rank());
}

PlanBackend::Request PlanBackend::find_places(const Call& call) const {
  Request request{.record = record_of(call, group_.rank(), group_.size()), .places = {}};
  if (!serves(call) || windows_->empty()) return request;
  request.places = windows_->places_of(request.record, call.input.data, call.output.data, group_.rank(), group_.size());
  if (!request.places) return request;
  request.record.phase = exec::Phase::kRegistered;
  request.record.parts = request.places->in_place ? 1 : 0;
  return request;
}

Status PlanBackend::prepare(const exec::RequestRecord& request, const plan::AlgorithmEntry& algorithm) {
  ACCORD_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::make_plan(algorithm, group_.topology(), {.collective = request.collective, .root = request.root}));
  ACCORD_RETURN_IF_ERROR(exec::check_for_device(plan));
  exec::DevicePlan mine;
  int lanes = 1;  // of the rank with the most
  for (const Rank rank : group_.topology().ranks()) {
    exec::Payload payload{request.dtype, plan::bounds_of(plan, request.count, size_of(request.dtype))};
    ACCORD_ASSIGN_OR_RETURN(const exec::DevicePlan made,
                            exec::lower_for_device(plan, rank, layout_, request, std::move(payload)));
    if (rank == group_.rank()) mine = made;
    lanes = std::max(lanes, static_cast<int>(made.program.lanes));
  }
  // All blocks of a kernel must run at the same time.
  mine.instances = std::min(mine.instances, max_blocks_ / lanes);
  if (mine.instances == 0)
    return Status(StatusCode::kUnsupported, fmt::format("plan \"{}\" has {} lanes, {} has {} multiprocessors",
                                                        algorithm.name, lanes, to_string(device_), max_blocks_));
  const int blocks = mine.instances * mine.program.lanes;
  if (explains() && group_.rank() == 0)
    explain(fmt::format("group \"{}\": {}: plan {} on {}, {} block{}", group_.options().name, exec::to_string(request),
                        algorithm.name, to_string(device_), blocks, blocks == 1 ? "" : "s"));
  plans_.insert_or_assign(std::bit_cast<exec::RequestWords>(request), mine);
  return {};
}

Status PlanBackend::enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                            Deadline /*deadline*/) {
  for (const Call& call : calls)
    ACCORD_RETURN_IF_ERROR(launch(call, &call == &calls.back() ? epilogue : nullptr, stream));
  return {};
}

Status PlanBackend::launch(const Call& call, const exec::PlanEpilogue* epilogue, Stream stream) {
  const Request request = find_places(call);
  const auto found = plans_.find(std::bit_cast<exec::RequestWords>(request.record));
  if (found == plans_.end())
    return Status(StatusCode::kWrongState, "a window was released while a call on it was made");
  const std::lock_guard lock(launches_);
  if (aborted_) return Status(StatusCode::kAborted, "it was aborted");
  ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_.is_capturing(device_, stream));
  ACCORD_ASSIGN_OR_RETURN(const std::uint64_t id, runtime_.stream_id(device_, stream));
  if (!captured && last_end_ != nullptr && last_stream_ != id) ACCORD_RETURN_IF_ERROR(last_end_->block(stream));
  const PlanWindows::Places places = request.places.value_or(PlanWindows::Places());
  const exec::DeviceBuffers buffers{.input = call.input.data,
                                    .output = call.output.data,
                                    .input_place = places.input,
                                    .output_place = places.output,
                                    .windows = ~windows_->free_numbers(),
                                    .memory = memory_->of(group_.rank()),
                                    .ending = stop_->get(),
                                    .fault = stop_->fault()};
  ACCORD_RETURN_IF_ERROR(
      exec::launch(runtime_, found->second, layout_, group_.rank(), buffers, device_, stream, epilogue));
  if (captured) return {};
  last_stream_ = id;
  has_end_ = false;
  return {};
}

void PlanBackend::set_end(const std::shared_ptr<DeviceEvent>& end) {
  const std::lock_guard lock(launches_);
  if (!has_end_) last_end_ = end;
  has_end_ = true;
}

bool PlanBackend::is_under_way() const {
  if (!has_end_) return true;  // nothing was recorded after it
  if (last_end_ == nullptr) return false;
  const Result<bool> over = runtime_.has_happened(last_end_->get());
  return over.ok() && !*over;
}

void PlanBackend::abort() {
  Waiter waiter(WaitPolicy::kYield);
  const Deadline deadline = Deadline::in(kStopTimeout);
  std::unique_lock lock(launches_);
  aborted_ = true;
  while (is_under_way() && !deadline.passed()) {
    lock.unlock();  // set_end() may be next
    (void)waiter.pause();
    lock.lock();
  }
}

}  // namespace accord::comm
