#pragma once
// Lets accord's communicators use a program's own NCCL communicators.

#include "accord/communicator.hpp"

namespace accord {

/// Makes `communicator` use `nccl_communicator`, an ncclComm_t over the same ranks in the same order, for its calls
/// on GPUs, instead of creating one. Must be called on all ranks, before the first such call; the first call detects
/// a rank that did not (kMismatch).
///
/// The ncclComm_t still belongs to its owner. It must outlive `communicator`, which never destroys or aborts it, so
/// calls whose peer is gone end only when the owner aborts it. `communicator` makes its calls on GPUs on the
/// ncclComm_t's device. Fails with kInvalidArgument if its ranks are not those of `communicator`, kWrongState after
/// the first call, and kNotFound or kUnsupported if NCCL is not available (docs/gpu.md).
[[nodiscard]] Status lend_nccl(Communicator& communicator, void* nccl_communicator);

/// Returns the NCCL that this process has loaded or would load: "2.29.7 (/usr/lib/.../libnccl.so.2)". kNotFound and
/// kUnsupported say what is missing.
[[nodiscard]] Result<std::string> nccl_version();

}  // namespace accord
