#pragma once
// The internals of comm that higher layers use beside the public headers. They include no other header of comm
// (tests/lint/check_layers.py).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "accord/call.hpp"
#include "accord/call_options.hpp"
#include "accord/communicator.hpp"
#include "accord/window.hpp"
#include "comm/buffer_checks.hpp"
#include "comm/device/kernel_call.hpp"
#include "comm/device/peer_memory.hpp"
#include "comm/environment.hpp"
#include "comm/formation/handle.hpp"
#include "comm/group_options.hpp"
#include "comm/made_from_group.hpp"
#include "comm/membership/shared_groups.hpp"
#include "comm/select_text.hpp"
#include "exec/device/plan_epilogue.hpp"

namespace accord::comm {

const GroupOptions& options_of(const Communicator& communicator);

/// Returns why operations have to end (the communicator failed or closed, or a peer reported a failure), with the
/// operation and the group as context; ok if they need not. Cost: a lock.
Status failure_of(const Communicator& communicator, std::string_view operation);

/// Communicator::abort() reaches `made` from now on, and at once if this rank has already aborted the communicator.
void add_made(const Communicator& communicator, const std::weak_ptr<MadeFromGroup>& made);

/// Returns the number of hosts that the ranks are on.
int host_count(const Communicator& communicator);

/// Returns the id of the window's communicator, which is equal on all ranks and different from those of all others.
std::uint64_t communicator_id_of(const Window& window);

/// Runs a call on device memory, like the public methods, and then `epilogue` on its output.
Status run(const Communicator& communicator, const Call& call, const exec::PlanEpilogue& epilogue,
           const CallOptions& options);

/// Watches the kernels that `put` puts into the stream like a call: the other ranks must make matching calls in time.
/// Returns the event at their end; null while the stream is captured. If the communicator fails, stop_word() ends the
/// kernels.
Result<std::shared_ptr<const device::Event>> run(const Communicator& communicator, const KernelCall& call,
                                                 const std::function<Status()>& put);

/// Returns a word of host memory that this rank's kernels on `device` read. Once it is not 0 they must stop waiting for
/// other ranks, and must not write to them any more.
Result<std::shared_ptr<const std::uint64_t>> stop_word(const Communicator& communicator, Device device);

/// Suggests a file as NCCL's library: one of the program's language packages, to be used before the system's. Called
/// before the library is first needed.
void suggest_nccl(std::string path);

}  // namespace accord::comm
