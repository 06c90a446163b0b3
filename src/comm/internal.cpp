#include "comm/internal.hpp"

#include <utility>

#include "comm/group.hpp"
#include "comm/nccl/library.hpp"
#include "comm/window/shared_window.hpp"

namespace accord::comm {

const GroupOptions& options_of(const Communicator& communicator) { return communicator.group()->options(); }

Status failure_of(const Communicator& communicator, std::string_view operation) {
  Group& group = *communicator.group();
  return group.state().check(group.where(operation));
}

void add_made(const Communicator& communicator, const std::weak_ptr<MadeFromGroup>& made) {
  communicator.group()->add_made(made);
}

int host_count(const Communicator& communicator) { return communicator.group()->topology().host_count(); }

std::uint64_t communicator_id_of(const Window& window) { return window.state()->group().membership().id; }

Status run(const Communicator& communicator, const Call& call, const exec::PlanEpilogue& epilogue,
           const CallOptions& options) {
  return communicator.group()->run(call, epilogue, options);
}

Result<std::shared_ptr<const device::Event>> run(const Communicator& communicator, const KernelCall& call,
                                                 const std::function<Status()>& put) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> end, communicator.group()->device_channel().run(call, put));
  const device::Event* const event = end == nullptr ? nullptr : &end->get();
  return std::shared_ptr<const device::Event>(std::move(end), event);
}

Result<std::shared_ptr<const std::uint64_t>> stop_word(const Communicator& communicator, Device device) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_ptr<StopWord> stop,
                          communicator.group()->device_channel().stop_word(device));
  return std::shared_ptr<const std::uint64_t>(stop, stop->get());
}

void suggest_nccl(std::string path) { nccl::suggest(std::move(path)); }

}  // namespace accord::comm
