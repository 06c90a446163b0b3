// The program of a request is a pure function of the request, the same on all ranks. When a request first occurs,
// each rank makes the programs of all ranks, so that none runs a program that another rank cannot run. The ranks are
// few, all of one host.
#include "comm/device/plan_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/call.hpp"
#include "comm/explain.hpp"
#include "comm/group.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm {
namespace {

/// Thread blocks of a call unless max_ctas says otherwise: kernels of ranks that share a GPU have to run on it at the
/// same time.
constexpr int kInstances = 16;
/// Time for kernels to end. One that is queued behind work that is not accord's may take longer.
constexpr std::chrono::seconds kStopTimeout(5);

}  // namespace

PlanBackend::PlanBackend(Group& group, device::Runtime& runtime, Device device, std::shared_ptr<StopWord> stop)
    : group_(group),
      runtime_(runtime),
      device_(device),
      layout_(exec::device_layout(group.size(), group.options().hints.max_ctas.value_or(kInstances),
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
  ACCORD_ASSIGN_OR_RETURN(max_blocks_, agree_on_blocks(deadline));
  layout_ =
      exec::device_layout(layout_.members, std::min(layout_.instances, max_blocks_), group_.options().hints.slot_bytes);
  ACCORD_ASSIGN_OR_RETURN(memory_, PeerMemory::create(group_, runtime_, device_, layout_.bytes(), deadline));
  std::vector<std::byte*> addresses;
  for (const Rank rank : group_.topology().ranks()) addresses.push_back(memory_->of(rank));
  return all_ok(group_, publish_addresses(0, addresses), deadline);
}

Result<int> PlanBackend::agree_on_blocks(Deadline deadline) {
  const Result<int> mine = runtime_.multiprocessors(device_);
  ACCORD_RETURN_IF_ERROR(all_ok(group_, mine.status(), deadline));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          gather_texts(group_, std::to_string(*mine), deadline.remaining()));
  int min_blocks = *mine;
  for (const std::string& text : texts) {
    int its = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), its);
    if (read.ec != std::errc() || its < 1)
      return Status(StatusCode::kInternal, fmt::format("a rank reports {} multiprocessors", quoted_text(text)));
    min_blocks = std::min(min_blocks, its);
  }
  return min_blocks;
}

Status PlanBackend::connect_multicast(Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(multicast_,
                          MulticastMemory::create(group_, runtime_, device_, layout_.multicast_bytes(), deadline));
  ACCORD_RETURN_IF_ERROR(
      all_ok(group_, publish_addresses(group_.size(), {multicast_->own(), multicast_->all()}), deadline));
  layout_.has_multicast = true;
  return {};
}

Status PlanBackend::publish_addresses(int first, const std::vector<std::byte*>& addresses) {
  ACCORD_ASSIGN_OR_RETURN(const Stream stream, runtime_.create_stream(device_, false));
  Status status = runtime_.copy(memory_->of(group_.rank()) + exec::DeviceLayout::address_of(first), addresses.data(),
                                addresses.size() * sizeof(std::byte*), device_, stream);
  if (status.ok()) status = runtime_.synchronize(device_, stream);
  (void)runtime_.destroy_stream(device_, stream);
  return status;
}

Status PlanBackend::prepare(const exec::RequestRecord& record, const plan::AlgorithmEntry& algorithm) {
  const plan::Request request{.collective = record.collective, .root = record.root};
  ACCORD_ASSIGN_OR_RETURN(const plan::Plan plan, plan::make_plan(algorithm, group_.topology(), request));
  exec::DevicePlan mine;
  int lanes = 1;  // of the rank with the most
  for (const Rank rank : group_.topology().ranks()) {
    exec::Payload payload{record.dtype, plan::bounds_of(plan, record.count, size_of(record.dtype))};
    ACCORD_ASSIGN_OR_RETURN(const exec::DevicePlan made,
                            exec::lower_for_device(plan, rank, layout_, record, std::move(payload)));
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
    explain(fmt::format("group \"{}\": {}: plan {} on {}, {} block{}", group_.options().name, exec::to_string(record),
                        algorithm.name, to_string(device_), blocks, blocks == 1 ? "" : "s"));
  plans_.insert_or_assign(std::bit_cast<exec::RequestWords>(record), mine);
  return {};
}

Status PlanBackend::enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                            Deadline /*deadline*/) {
  for (const Call& call : calls)
    ACCORD_RETURN_IF_ERROR(launch(call, &call == &calls.back() ? epilogue : nullptr, stream));
  return {};
}

Status PlanBackend::launch(const Call& call, const exec::PlanEpilogue* epilogue, Stream stream) {
  const exec::RequestRecord record = record_of(call, group_.rank(), group_.size());
  const exec::DevicePlan& plan = plans_.find(std::bit_cast<exec::RequestWords>(record))->second;
  const std::lock_guard lock(launches_);
  if (aborted_) return Status(StatusCode::kAborted, "it was aborted");
  ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_.is_capturing(device_, stream));
  ACCORD_ASSIGN_OR_RETURN(const std::uint64_t id, runtime_.stream_id(device_, stream));
  if (!captured && last_end_ != nullptr && last_stream_ != id) ACCORD_RETURN_IF_ERROR(last_end_->block(stream));
  const exec::DeviceBuffers buffers{.input = call.input.data,
                                    .output = call.output.data,
                                    .memory = memory_->of(group_.rank()),
                                    .ending = stop_->get(),
                                    .fault = stop_->fault()};
  ACCORD_RETURN_IF_ERROR(exec::launch(runtime_, plan, layout_, group_.rank(), buffers, device_, stream, epilogue));
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
  const std::lock_guard lock(launches_);
  aborted_ = true;
  Waiter waiter(WaitPolicy::kYield);
  const Deadline deadline = Deadline::in(kStopTimeout);
  while (is_under_way() && !deadline.passed()) (void)waiter.pause();
}

}  // namespace accord::comm
