// The choice for a request is made when it first occurs, and kept. It considers only what all ranks have. The first
// collective finds out whether they have NCCL; the first call that the table gives to a plan creates the memory for
// plans.
#include "comm/device/device_backends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "comm/call.hpp"
#include "comm/explain.hpp"
#include "comm/group.hpp"
#include "plan/registry.hpp"

namespace accord::comm {
namespace {

constexpr std::size_t kMaxChoices = 1024;

bool is_collective(const Call& call) { return call.direction == Direction::kNone; }

/// Whether its plan accesses the buffers of peers.
bool needs_windows(const plan::AlgorithmEntry& algorithm, int size, Rank root) {
  if (algorithm.registered == nullptr) return algorithm.buffers != plan::Buffers::kAnywhere;
  const plan::Plan* const plan = algorithm.registered->find(size, root);
  return plan != nullptr && plan->buffers != plan::Buffers::kAnywhere;
}

/// The request as peers see it that the algorithm serves. Ranks whose calls are not all in place may choose different
/// algorithms, so it names the algorithm.
exec::RequestRecord announced_for(exec::RequestRecord request, const plan::AlgorithmEntry& algorithm) {
  request.parts = xxh3(std::as_bytes(std::span(algorithm.name)));
  return request;
}

/// Memory that plans access on all ranks, and that NCCL may know as well.
class WindowMemory final : public RegisteredMemory {
 public:
  WindowMemory(std::shared_ptr<RegisteredMemory> of_nccl, std::shared_ptr<PlanWindow> of_plans)
      : of_nccl_(std::move(of_nccl)), of_plans_(std::move(of_plans)) {}
  void* data() const override { return of_plans_->data(); }
  WindowUse use() const override { return of_nccl_ == nullptr ? WindowUse::kPlain : of_nccl_->use(); }
  bool is_direct() const override { return true; }

 private:
  const std::shared_ptr<RegisteredMemory> of_nccl_;  ///< null without NCCL; destroyed last, as it may own the memory
  const std::shared_ptr<PlanWindow> of_plans_;
};

}  // namespace

DeviceBackends::DeviceBackends(Group& group, device::Runtime& runtime, Device device, std::shared_ptr<StopWord> stop,
                               nccl::Communicator* lent)
    : group_(group), nccl_(group, runtime, device, lent), plans_(group, runtime, device, std::move(stop)) {}

Status DeviceBackends::check(const Call& call) const {
  return PlanBackend::serves(call) ? Status() : nccl_.check(call);
}

Status DeviceBackends::agree(std::span<const Call> calls, Deadline deadline) {
  if (std::none_of(calls.begin(), calls.end(), is_collective)) return nccl_.agree(calls, deadline);
  if (!without_nccl_) {
    Status agreed = nccl_.agree(calls, deadline);
    // A rank without NCCL is not a failure of the group, which may have plans.
    const bool lacks = agreed.code() == StatusCode::kNotFound || agreed.code() == StatusCode::kUnsupported;
    if (!agreed.ok() && (!lacks || !group_.state().healthy())) return agreed;
    without_nccl_ = agreed;
  }
  // Only here, so that no backend forgets a call between this and enqueue().
  if (const std::uint64_t version = plan::registry_version(); version != version_ || choices_.size() >= kMaxChoices) {
    choices_.clear();
    plans_.forget();
    version_ = version;
  }
  for (const Call& call : calls)
    ACCORD_RETURN_IF_ERROR(is_collective(call) ? choose(call, deadline) : nccl_.agree({&call, 1}, deadline));
  return {};
}

Status DeviceBackends::choose(const Call& call, Deadline deadline) {
  const exec::RequestRecord request = plans_.request_of(call);
  if (call.division != Division::kEqual) return decide(call, request, deadline).status();
  const auto words = std::bit_cast<exec::RequestWords>(request);
  if (choices_.contains(words)) return {};
  ACCORD_ASSIGN_OR_RETURN(const Chosen chosen, decide(call, request, deadline));
  choices_.emplace(words, chosen);
  return {};
}

Result<DeviceBackends::Chosen> DeviceBackends::decide(const Call& call, const exec::RequestRecord& request,
                                                      Deadline deadline) {
  const Status nccl_lacks = without_nccl_->ok() ? nccl_.check(call) : *without_nccl_;
  const bool registered = request.phase == exec::Phase::kRegistered;
  const exec::RequestRecord plain = record_of(call, group_.rank(), group_.size());
  plan::SelectorCall selected{.collective = call.collective,
                              .bytes = request.count * size_of(request.dtype),
                              .root = request.root,
                              .op = call.op.op(),
                              .registered = registered,
                              .in_place = registered && request.parts == 1,
                              .memory = DeviceType::kCuda,
                              .has_nccl = nccl_lacks.ok(),
                              .has_plans = PlanBackend::serves(call),
                              .has_multicast = !without_multicast_ || without_multicast_->ok()};
  Status plan_lacks;
  while (true) {
    const Result<plan::Choice> choice = group_.selector().choose(selected, group_.topology());
    if (!choice.ok()) return no_backend_error(call, nccl_lacks, plan_lacks, choice.status());
    const plan::AlgorithmEntry& algorithm = *choice->algorithm;
    if (algorithm.is_library) return Chosen{&nccl_, plain};
    ACCORD_RETURN_IF_ERROR(connect_plans(deadline));
    const bool multicasts = plan::needs_multicast(algorithm, group_.size(), request.root);
    if (without_plans_->ok() && multicasts) {
      ACCORD_RETURN_IF_ERROR(connect_multicast(deadline));
      if (!without_multicast_->ok()) {
        selected.has_multicast = false;
        continue;
      }
    }
    if (without_plans_->ok()) {
      const bool in_windows = needs_windows(algorithm, group_.size(), request.root);
      plan_lacks = plans_.prepare(request, algorithm);
      if (plan_lacks.ok()) return Chosen{&plans_, in_windows ? announced_for(request, algorithm) : plain};
      if (selected.has_multicast && multicasts) {
        selected.has_multicast = false;  // plans without multicast may still serve the call
        continue;
      }
    } else {
      plan_lacks = *without_plans_;
    }
    selected.has_plans = false;
  }
}

Status DeviceBackends::connect_plans(Deadline deadline) {
  if (without_plans_) return {};
  Status connected = plans_.connect(deadline);
  if (!connected.ok() && (connected.code() == StatusCode::kTimeout || !group_.state().healthy())) return connected;
  without_plans_ = std::move(connected);
  if (without_plans_->ok() || group_.rank() != 0) return {};
  const std::string text =
      fmt::format("group \"{}\": no plans on GPUs: {}", group_.options().name, without_plans_->message());
  // Between hosts this is as expected. Within one, calls that plans would have served are slower or fail.
  if (group_.topology().host_count() == 1)
    log().warn("{}", text);
  else
    explain(text);
  return {};
}

Status DeviceBackends::connect_multicast(Deadline deadline) {
  if (without_multicast_) return {};
  Status connected = plans_.connect_multicast(deadline);
  if (!connected.ok() && (connected.code() == StatusCode::kTimeout || !group_.state().healthy())) return connected;
  without_multicast_ = connected;
  if (!connected.ok() && explains() && group_.rank() == 0)
    explain(fmt::format("group \"{}\": no multicast: {}", group_.options().name, connected.message()));
  return {};
}

Status DeviceBackends::no_backend_error(const Call& call, const Status& nccl_lacks, const Status& plan_lacks,
                                        const Status& no_row) const {
  const std::string and_plans = plan_lacks.ok() ? "" : "; " + plan_lacks.message();
  if (!nccl_lacks.ok()) return Status(nccl_lacks.code(), nccl_lacks.message() + and_plans, nccl_lacks.ranks());
  if (!group_.selector().canonical_only() || !plan::traits_of(call.collective).reduces) return no_row;
  return Status(StatusCode::kUnsupported,
                "nccl adds in an order of its own, which deterministic=canonical does not allow" + and_plans);
}

const DeviceBackends::Chosen* DeviceBackends::choice_of(const Call& call) const {
  const auto found = choices_.find(std::bit_cast<exec::RequestWords>(plans_.request_of(call)));
  return found == choices_.end() ? nullptr : &found->second;
}

CollectiveBackend& DeviceBackends::backend_of(const Call& call) {
  if (!is_collective(call) || call.division != Division::kEqual) return nccl_;
  // Plans report that the windows of the call have been released since it was agreed on.
  const Chosen* const chosen = choice_of(call);
  return chosen == nullptr ? plans_ : *chosen->backend;
}

exec::RequestRecord DeviceBackends::announced(const Call& call) const {
  const Chosen* const chosen = is_collective(call) && call.division == Division::kEqual ? choice_of(call) : nullptr;
  return chosen == nullptr ? record_of(call, group_.rank(), group_.size()) : chosen->announced;
}

Status DeviceBackends::enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                               Deadline deadline) {
  // Adjacent calls of one backend begin together.
  while (!calls.empty()) {
    CollectiveBackend& backend = backend_of(calls.front());
    std::size_t many = 1;
    while (many < calls.size() && &backend_of(calls[many]) == &backend) ++many;
    const bool has_last = many == calls.size();
    ACCORD_RETURN_IF_ERROR(backend.enqueue(calls.first(many), has_last ? epilogue : nullptr, stream, deadline));
    calls = calls.subspan(many);
  }
  return {};
}

bool DeviceBackends::can_capture(std::span<const Call> calls) {
  return std::all_of(calls.begin(), calls.end(), [&](const Call& call) { return backend_of(call).can_capture(call); });
}

void DeviceBackends::note_capture(std::span<const Call> calls) {
  if (std::any_of(calls.begin(), calls.end(), [&](const Call& call) { return &backend_of(call) == &nccl_; }))
    nccl_.note_capture();
}

Status DeviceBackends::split(int color, int key, DeviceBackends* child, Deadline deadline) {
  return nccl_.split(color, key, child == nullptr ? nullptr : &child->nccl_, deadline);
}

Status DeviceBackends::shrink(std::span<const Rank> lost, DeviceBackends& child, Deadline deadline) {
  return nccl_.shrink(lost, child.nccl_, deadline);
}

Result<std::shared_ptr<RegisteredMemory>> DeviceBackends::register_memory(void* memory, std::size_t bytes,
                                                                          Deadline deadline) {
  std::shared_ptr<RegisteredMemory> of_nccl;
  LentMemory lent{.memory = static_cast<std::byte*>(memory)};
  if (without_nccl_->ok()) {
    ACCORD_ASSIGN_OR_RETURN(of_nccl, nccl_.register_memory(memory, bytes, deadline));
    if (memory == nullptr) lent = {.memory = static_cast<std::byte*>(of_nccl->data()), .owner = of_nccl->allocation()};
  }
  ACCORD_RETURN_IF_ERROR(connect_plans(deadline));
  Result<std::shared_ptr<PlanWindow>> of_plans = *without_plans_;
  if (without_plans_->ok()) of_plans = plans_.add_window(lent, bytes, deadline);
  if (!of_plans.ok() && (of_plans.status().code() == StatusCode::kTimeout || !group_.state().healthy()))
    return of_plans.status();
  if (of_plans.ok())
    return std::shared_ptr<RegisteredMemory>(std::make_shared<WindowMemory>(std::move(of_nccl), *std::move(of_plans)));
  if (of_nccl == nullptr)
    return of_plans.status().code() != StatusCode::kUnsupported
               ? of_plans.status()
               : Status(without_nccl_->code(), without_nccl_->message() + "; " + of_plans.status().message(),
                        without_nccl_->ranks());
  if (explains() && group_.rank() == 0)
    explain(fmt::format("group \"{}\": plans do not access a window: {}", group_.options().name,
                        of_plans.status().message()));
  return of_nccl;
}

Status DeviceBackends::asynchronous_error() {
  ACCORD_RETURN_IF_ERROR(plans_.asynchronous_error());
  return nccl_.asynchronous_error();
}

void DeviceBackends::abort() {
  // Plans' kernels have been told to end. They may be queued behind those of NCCL, which have not.
  nccl_.abort();
  plans_.abort();
}

}  // namespace accord::comm
